# Program of a shell session. Reads requests from descriptor 197, number:word and a text that each end in a NUL, and replies on
# the same descriptor with number NUL status NUL working-directory NUL; the number is that of the request. Every command runs at top level, inside a sourced file, so
# that a signal handler can make it return.
#
# The `return` of a trap leaves only one function; with the second trap, each further command leaves the next one.
__agentflow_stop='[[ -z $__agentflow_running || ${#BASH_SOURCE[@]} -eq 0 ]] || return 124'
trap '[[ -z $__agentflow_running ]] || { __agentflow_stopped=1; trap "$__agentflow_stop" DEBUG; }; eval "$__agentflow_stop"' SIGRTMAX
__agentflow_running= __agentflow_stopped= __agentflow_word= __agentflow_number= __agentflow_last=0 __agentflow_trace=
__agentflow_status() { return "$1"; }
# Replies to the last command and reads the next. Every iteration starts with it, so that a stray `continue` or `break` in
# a command skips no reply; its output is discarded, so that `set -x`, `set -v` and traps show only commands.
__agentflow_turn() {
  [[ $__agentflow_word != run && $__agentflow_word != ask ]] || __agentflow_last=$1 __agentflow_trace=${-//[^vx]/}
  set +vx
  [[ -z $__agentflow_word ]] || builtin printf '%s\0%s\0%s\0' "$__agentflow_number" "$1" "$PWD" >&197
  # A signal or `TMOUT` can end a `read` that has read only a part.
  __agentflow_word= __agentflow_command= __agentflow_part=
  until IFS= builtin read -r -d '' -u 197 __agentflow_part; do
    (($? > 128)) || exit 0
    __agentflow_word+=$__agentflow_part __agentflow_part=
  done
  __agentflow_word+=$__agentflow_part __agentflow_part=
  __agentflow_number=${__agentflow_word%%:*} __agentflow_word=${__agentflow_word#*:}
  until IFS= builtin read -r -d '' -u 197 __agentflow_part; do
    (($? > 128)) || exit 0
    __agentflow_command+=$__agentflow_part __agentflow_part=
  done
  __agentflow_command+=$__agentflow_part
  __agentflow_running=1
}
while { builtin declare -F __agentflow_turn; } >/dev/null 2>&1; do
  while {
    __agentflow_index=$? __agentflow_running=
    [[ -z $__agentflow_stopped ]] || { __agentflow_stopped=; trap - DEBUG; }
    __agentflow_turn "$__agentflow_index"
  } >/dev/null 2>&1; do
    case $__agentflow_word in
    # The condition sets `$?`; conditions trigger neither `set -e` nor ERR traps.
    run) if __agentflow_status "$__agentflow_last"; then . /etc/bash; else . /etc/bash; fi </dev/null 197>&- ;;
    ask) if __agentflow_status "$__agentflow_last"; then . /etc/bash; else . /etc/bash; fi 197>&- ;;
    dump)
      __agentflow_open= __agentflow_flags=$-
      set +f
      for __agentflow_index in /proc/self/fd/*; do
        __agentflow_index=${__agentflow_index##*/}
        ((__agentflow_index <= 2 || __agentflow_index == 197)) || [[ ! -e /proc/self/fd/$__agentflow_index ]] ||
          __agentflow_open+="# left: descriptor $__agentflow_index"$'\n'
      done
      [[ $__agentflow_flags != *f* ]] || set -f
      printf '%s\0' "$__agentflow_number" >&197
      {
        shopt -p
        printf 'shopt -u expand_aliases\n'
        declare -p
        declare -f
        export -fp
        trap -p
        alias -p
        shopt -p expand_aliases
        umask -p
        for __agentflow_index in c d f l m n s t u v; do
          printf 'ulimit -S -%s ' "$__agentflow_index"; ulimit -S -"$__agentflow_index"
          printf 'ulimit -H -%s ' "$__agentflow_index"; ulimit -H -"$__agentflow_index"
        done
        printf 'builtin cd -- %q; unset OLDPWD\n' "$PWD"
        declare -p OLDPWD
        [[ . -ef $PWD ]] || printf '# left: working directory %q, which is gone\n' "$PWD"
        for ((__agentflow_index = ${#DIRSTACK[@]} - 1; __agentflow_index > 0; __agentflow_index--)); do
          printf 'builtin pushd -n -- %q >/dev/null\n' "${DIRSTACK[__agentflow_index]}"
        done
        complete -p
        [[ $# -eq 0 ]] || { printf 'set --'; printf ' %q' "$@"; printf '\n'; }
        set +o
        printf '__agentflow_last=%q\n' "$__agentflow_last"
        # Not those that have ended.
        jobs -lr | while IFS= read -r __agentflow_line; do printf '# left: job %s\n' "$__agentflow_line"; done
        jobs -ls | while IFS= read -r __agentflow_line; do printf '# left: job %s\n' "$__agentflow_line"; done
        printf '%s' "$__agentflow_open"
      } 2>/dev/null >&197
      printf '\0' >&197
      ;;
    restore)
      # The state contains the parent's number.
      __agentflow_command+=$'\n'"__agentflow_number=$__agentflow_number"
      eval "$__agentflow_command" 2>/dev/null </dev/null 197>&-
      ;;
    esac
  done
done
