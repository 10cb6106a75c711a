"""QEMU command line of a machine. A saved state fits only the machine that it was taken from."""

from dataclasses import dataclass

from runtimes.qemu._image import BootImage
from runtimes.qemu._settings import QemuSettings

KERNEL, INITRD, BASE = "/machine/kernel", "/machine/initrd", "/machine/base"
SAVED_DISK, DISK = "/machine/saved.qcow2", "/machine/disk.qcow2"
_TRANSLATED_MIB = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineWiring:
    """Differences between a boot, a restored machine and a fork."""

    kvm: bool
    """Use KVM."""
    memory: int | None
    """Descriptor of the file with its initial memory; `None` for anonymous memory."""
    shared: bool = False
    """Writes to memory go to the file."""
    disk: str | None = None
    """File of the disk inside the sandbox."""
    incoming: bool = False
    """Wait for an incoming state."""


def command_line(
    settings: QemuSettings, image: BootImage, wiring: MachineWiring, qmp: int, door: int
) -> list[str]:
    """Return the command line of this machine.

    :param qmp: descriptor of the QMP socket.
    :param door: descriptor of the socket for the guest's port.
    """
    size = settings.memory_mib
    words = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"]
    words += ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    words += ["-M", "q35,memory-backend=memory,vmport=off", "-m", f"{size}M", "-smp", str(settings.cpus)]
    translated = ["-accel", f"tcg,tb-size={_TRANSLATED_MIB}", "-cpu", "max"]
    words += ["-accel", "kvm", "-cpu", "host"] if wiring.kvm else translated
    if wiring.memory is None:
        words += ["-object", f"memory-backend-ram,id=memory,size={size}M"]
    else:
        file, share = f"/proc/self/fd/{wiring.memory}", "on" if wiring.shared else "off"
        words += ["-object", f"memory-backend-file,id=memory,size={size}M,mem-path={file},share={share}"]
    words += ["-chardev", f"socket,id=qmp,fd={qmp}", "-mon", "chardev=qmp,mode=control"]
    words += ["-device", "VGA,xres={},yres={}".format(*settings.display)]
    words += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=door,fd={door}"]
    words += ["-device", "virtserialport,chardev=door,name=door"]
    usb = settings.pointer == "usb"
    words += ["-device", "qemu-xhci", "-device", "usb-tablet"] if usb else ["-device", "virtio-tablet-pci"]
    # A guest that supports it reseeds its random numbers after it is restored.
    words += ["-device", "vmgenid,guid=auto", "-rtc", "clock=vm"]
    if image.kernel is not None:
        words += ["-kernel", KERNEL, "-append", image.append]
        words += ["-initrd", INITRD] if image.initrd is not None else []
    if wiring.disk is not None:
        words += ["-drive", f"file={wiring.disk},format=qcow2,if=virtio,cache=unsafe"]
    return [*words, "-incoming", "defer"] if wiring.incoming else words
