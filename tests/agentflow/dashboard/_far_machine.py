"""Another machine: an sshd in a network namespace of its own, which a client reaches without a network."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# Both kinds of users get a namespace whose loopback address they may switch on.
_NAMESPACE = "--net" if os.getuid() == 0 else "--user --map-current-user --keep-caps --net"


def far_machine(folder: Path) -> Path:
    """Return a folder with a program `ssh` that knows the machine `far`."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    ssh = shutil.which("ssh")
    if sshd is None or ssh is None:
        pytest.fail("openssh-server is missing; `make test` installs it")
    folder.mkdir()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n"
    )
    server = f"ip link set lo up; exec {sshd} -i -f {folder}/sshd_config"
    (folder / "ssh_config").write_text(
        f"Host far\n  ProxyCommand unshare {_NAMESPACE} -- sh -c '{server}'\n  IdentityFile {folder}/user\n"
        "  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    program = folder / "bin/ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {ssh} -F {folder}/ssh_config "$@"\n')
    program.chmod(0o755)
    return program.parent
