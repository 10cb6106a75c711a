"""Isolation for untrusted code. `runtimes._protocol` is the contract of a runtime, `runtimes._machine` of a machine."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from runtimes._confinement import refuse_changes, restrict_calls, restrict_files, set_limit
    from runtimes._framing import (
        MAX_FRAME_BYTES,
        FrameDecoder,
        FrameError,
        FrameReader,
        JsonLimits,
        LineDecoder,
        check_json,
        decode_object,
        json_values,
        pack_frame,
        pack_message,
        read_frame,
        unpack_message,
        write_frame,
    )
    from runtimes._machine import Button, Machine, MachineRuntime, Screen, Window
    from runtimes._protocol import (
        MIB,
        WORKSPACE,
        Capabilities,
        Display,
        ExecResult,
        FileInfo,
        Fork,
        HostRule,
        Instance,
        InstanceSpec,
        Language,
        Limits,
        NetworkAccess,
        Outcome,
        OutputSink,
        PythonError,
        ResourceUsage,
        RunResult,
        Runtime,
        Snapshot,
        Stream,
        parse_host_rule,
    )
    from runtimes._untrusted import decode_untrusted

__all__ = [
    "MAX_FRAME_BYTES",
    "MIB",
    "WORKSPACE",
    "Button",
    "Capabilities",
    "Display",
    "ExecResult",
    "FileInfo",
    "Fork",
    "FrameDecoder",
    "FrameError",
    "FrameReader",
    "HostRule",
    "Instance",
    "InstanceSpec",
    "JsonLimits",
    "Language",
    "Limits",
    "LineDecoder",
    "Machine",
    "MachineRuntime",
    "NetworkAccess",
    "Outcome",
    "OutputSink",
    "PythonError",
    "ResourceUsage",
    "RunResult",
    "Runtime",
    "Screen",
    "Snapshot",
    "Stream",
    "Window",
    "check_json",
    "decode_object",
    "decode_untrusted",
    "json_values",
    "pack_frame",
    "pack_message",
    "parse_host_rule",
    "read_frame",
    "refuse_changes",
    "restrict_calls",
    "restrict_files",
    "set_limit",
    "unpack_message",
    "write_frame",
]

_CONFINEMENT = ["refuse_changes", "restrict_calls", "restrict_files", "set_limit"]
_FRAMING = [
    "MAX_FRAME_BYTES",
    "FrameDecoder",
    "FrameError",
    "FrameReader",
    "JsonLimits",
    "LineDecoder",
    "check_json",
    "json_values",
    "decode_object",
    "pack_frame",
    "pack_message",
    "read_frame",
    "unpack_message",
    "write_frame",
]
_UNTRUSTED = ["decode_untrusted"]
_MACHINE = ["Button", "Machine", "MachineRuntime", "Screen", "Window"]

# Programs inside sandboxes import this package and start in milliseconds.
__getattr__ = lazy_exports(
    __name__,
    {
        "._confinement": _CONFINEMENT,
        "._framing": _FRAMING,
        "._machine": _MACHINE,
        "._protocol": [
            name for name in __all__ if name not in (*_CONFINEMENT, *_FRAMING, *_MACHINE, *_UNTRUSTED)
        ],
        "._untrusted": _UNTRUSTED,
    },
)
