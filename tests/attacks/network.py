"""Network: every socket family and protocol, and addresses outside the sandbox."""

from tests.attacks._table import Attack, attacks

CATEGORY = "network"
NO_FAMILY = "(EAFNOSUPPORT|EPERM|EACCES)"
NO_PROTOCOL = "(EPERM|EACCES|EAFNOSUPPORT|EPROTONOSUPPORT|ESOCKTNOSUPPORT)"
NO_ROUTE = "(ENETUNREACH|EHOSTUNREACH|EADDRNOTAVAIL|EINVAL)"

_ALLOWED_FAMILIES = (1, 2, 10, 16)
_FAMILIES = [family for family in range(47) if family not in _ALLOWED_FAMILIES]
_NETLINK = {
    1: "unused", 2: "user sockets", 4: "socket monitoring", 5: "packet logs", 6: "IPsec", 7: "SELinux", 8: "iSCSI", 9: "audit",
    10: "routing lookups", 11: "connector", 12: "netfilter", 14: "DECnet", 15: "kernel events", 16: "generic", 18: "SCSI",
    19: "eCryptfs", 20: "RDMA", 21: "crypto", 22: "SMC",
}  # fmt: skip
_PROTOCOLS = {
    "raw IPv4": "2, 3, 1", "raw IPv4 of any kind": "2, 3, 255", "raw IPv6": "10, 3, 58", "ping": "2, 2, 1", "ping IPv6": "10, 2, 58",
    "MPTCP": "2, 1, 262", "MPTCP IPv6": "10, 1, 262", "UDP-Lite": "2, 2, 136", "UDP-Lite IPv6": "10, 2, 136", "SCTP": "2, 5, 132", "SCTP, one to one": "2, 1, 132", "L2TP": "2, 2, 115",
    "DCCP": "2, 6, 33", "SMC": "43, 1, 0", "packet of old kernels": "2, 10, 3",
}  # fmt: skip
_ADDRESSES = {
    "cloud metadata": ("2", "('169.254.169.254', 80)"),
    "cloud metadata of Azure": ("2", "('168.63.129.16', 80)"),
    "cloud metadata of Alibaba": ("2", "('100.100.100.200', 80)"),
    "cloud metadata by IPv6": ("10", "('fd00:ec2::254', 80)"),
    "the container bridge": ("2", "('172.17.0.1', 80)"),
    "a private network": ("2", "('10.0.0.1', 80)"),
    "a router": ("2", "('192.168.1.1', 80)"),
    "a name server": ("2", "('8.8.8.8', 53)"),
    "the internet by IPv6": ("10", "('2606:4700:4700::1111', 443)"),
    "a mapped address": ("10", "('::ffff:169.254.169.254', 80)"),
    "a NAT64 address": ("10", "('64:ff9b::a9fe:a9fe', 80)"),
    "a link-local address": ("10", "('fe80::1', 80, 0, 1)"),
    "broadcast": ("2", "('255.255.255.255', 80)"),
    "multicast": ("2", "('224.0.0.1', 80)"),
}
_OPTIONS = {
    "pretend any source address": ("socket.SOL_IP, 19, 1", "EPERM"),
    "mark packets for routing": ("socket.SOL_SOCKET, 36, 1", "EPERM"),
    "use a high priority": ("socket.SOL_SOCKET, 12, 7", "EPERM"),
    "force a large receive buffer": ("socket.SOL_SOCKET, 33, 1 << 30", "EPERM"),
    "force a large send buffer": ("socket.SOL_SOCKET, 32, 1 << 30", "EPERM"),
    "repair a connection": ("socket.SOL_TCP, 19, 1", "EPERM"),
    "debug the protocol": ("socket.SOL_SOCKET, 1, 1", "EACCES"),
    "attach a loaded program": ("socket.SOL_SOCKET, 50, 3", "(ENOPROTOOPT|EPERM|EINVAL|EBADF)"),
    "filter by netfilter": ("socket.SOL_IP, 64, bytes(256)", "(EPERM|ENOPROTOOPT)"),
    "filter ARP": ("socket.SOL_IP, 96, bytes(256)", "(EPERM|ENOPROTOOPT)"),
    "route multicast": ("socket.SOL_IP, 200, 1", "(EPERM|EACCES|ENOTSUP|EOPNOTSUPP|ENOPROTOOPT)"),
    "set IPsec policy": ("socket.SOL_IP, 17, bytes(64)", "(EPERM|EINVAL|ENOPROTOOPT)"),
}
_INTERFACE = {
    "set its address": ("0x8916", "EPERM"),
    "set its flags": ("0x8914", "EPERM"),
    "rename it": ("0x8923", "EPERM"),
    "set its hardware address": ("0x8924", "EPERM"),
    "add a bridge": ("0x89A0", "(EPERM|ENOTTY|ENOPKG|EINVAL)"),
    "add a route": ("0x890B", "EPERM"),
    "add a tunnel": ("0x89F1", "(EPERM|ENOTTY|EINVAL|ENOTSUP|EOPNOTSUPP|ENODEV)"),
    "add a virtual LAN": ("0x8983", "(EPERM|ENOTTY|ENOPKG|EFAULT|EINVAL)"),
    "change ARP": ("0x8955", "EPERM"),
}
_LINK = "struct.pack('=IHHIIBBHiII', 32, {kind}, {flags}, 1, 0, 0, 0, 0, 0, 0, 0)"
_ASK = (
    "sock = socket.socket(16, 3, 0)\nsock.settimeout(5)\nsock.send({message})\nreply = sock.recv(65536)\n"
    "kind, code = struct.unpack_from('=4xH10xi', reply)\n"
    "'done' if kind != 2 or code == 0 else errno.errorcode[-code]"
)
_DENIED_ASK = "(EPERM|EACCES|EAFNOSUPPORT|EOPNOTSUPP|TimeoutError.*|EINVAL)"


def _request(kind: int, flags: int = 0x605) -> str:
    return _ASK.format(message=_LINK.format(kind=kind, flags=flags))


_TABLE: dict[str, tuple[str, str, str]] = {
    **{f"family {n}": (f"open a socket of the family {n}", f"sorted({{attempt(socket.socket, {n}, kind) for kind in (1, 2, 3, 5)}})", rf"\[('{NO_FAMILY}',? ?)+\]") for n in _FAMILIES},
    **{f"netlink {n}": (f"open a netlink socket for {use}", f"attempt(socket.socket, 16, 3, {n})", NO_PROTOCOL) for n, use in _NETLINK.items()},
    **{f"protocol {name}": (f"open a socket for {name}", f"attempt(socket.socket, {arguments})", NO_PROTOCOL) for name, arguments in _PROTOCOLS.items()},
    **{f"connect to {name}": (f"reach {name}", f"connect({family}, {address})", NO_ROUTE) for name, (family, address) in _ADDRESSES.items()},
    **{f"send to {name}": (f"send a datagram to {name}", f"attempt(socket.socket({family}, 2).sendto, b'x', {address})", "(EACCES|" + NO_ROUTE[1:]) for name, (family, address) in _ADDRESSES.items()},
    **{f"option: {name}": (name, f"attempt(socket.socket(2, 1).setsockopt, {arguments})", seen) for name, (arguments, seen) in _OPTIONS.items()},
    **{f"interface: {name}": (f"change the network interface: {name}", f"attempt(fcntl.ioctl, socket.socket(2, 2), {code}, b'lo'.ljust(256, b'\\0'))", seen) for name, (code, seen) in _INTERFACE.items()},
    "route: add a link": ("add a network interface by netlink", _request(16), _DENIED_ASK),
    "route: add an address": ("add an address by netlink", _request(20), _DENIED_ASK),
    "route: add a route": ("add a route by netlink", _request(24), _DENIED_ASK),
    "route: add a rule": ("add a routing rule by netlink", _request(32), _DENIED_ASK),
    "route: add a namespace id": ("name another network namespace by netlink", _request(88), _DENIED_ASK),
    "route: add traffic control": ("control traffic by netlink", _request(36), _DENIED_ASK),
    "host: loopback": ("reach a server on the host's loopback", "connect(2, ('127.0.0.1', $PORT))", "ECONNREFUSED"),
    "host: any address": ("reach a server on the host by the address of any", "connect(2, ('0.0.0.0', $PORT))", "ECONNREFUSED"),
    "host: loopback by IPv6": ("reach a server on the host by a mapped address", "connect(10, ('::ffff:127.0.0.1', $PORT))", "ECONNREFUSED"),
    "host: abstract socket": ("reach an abstract socket of the host", "connect(1, '\\0$ABSTRACT'), attempt(socket.socket(1, 2).sendto, b'x', '\\0$ABSTRACT')", r"\('ECONNREFUSED', 'E(CONNREFUSED|PROTOTYPE)'\)"),
    "host: socket file": ("reach a socket file of the host", "connect(1, '$SOCKET')", "(ENOENT|EACCES)"),
    "host: well-known sockets": ("reach services of the host", "sorted({connect(1, path) for path in ('/run/docker.sock', '/run/containerd/containerd.sock', '/run/dbus/system_bus_socket', '/run/systemd/private', '/tmp/.X11-unix/X0', '/run/user/0/bus', '/dev/log', '/run/nscd/socket')})", r"\['ENOENT'\]"),
    "host: /proc/net": ("see sockets of the host", "[name for name in ('tcp', 'tcp6', 'udp', 'raw', 'unix', 'netlink') if os.path.exists(f'/proc/net/{name}') and (':%04X ' % $PORT in (text := open(f'/proc/net/{name}').read()) or '$ABSTRACT' in text)]", r"\[\]"),
    "host: /proc/net of the first process": ("see sockets of another network namespace", "attempt_open('/proc/1/net/tcp')", "(EACCES|ENOENT|EINVAL)"),
    "privileged port": ("listen on a privileged port", "attempt(socket.socket(2, 1).bind, ('127.0.0.1', 80))", "(EACCES|EPERM)"),
    "foreign address": ("listen on an address of another machine", "attempt(socket.socket(2, 1).bind, ('10.0.0.1', 8080))", "EADDRNOTAVAIL"),
    "forged credentials": ("send credentials of root", "one, two = socket.socketpair()\nattempt(one.sendmsg, [b'x'], [(1, 2, struct.pack('=iII', 1, 0, 0))])", "(EPERM|EINVAL)"),
    "bind to a device": ("use another network device", "attempt(socket.socket(2, 1).setsockopt, 1, 25, b'eth0\\0')", "(ENODEV|EPERM)"),
    "tunnel device": ("open the tunnel device", "attempt_open('/dev/net/tun', os.O_RDWR)", "(ENOENT|EPERM|EACCES)"),
    "virtual machine socket device": ("open the socket device of virtual machines", "attempt_open('/dev/vsock', os.O_RDWR), attempt_open('/dev/vhost-vsock', os.O_RDWR)", r"\('ENOENT', 'ENOENT'\)"),
    "sysctl of the network": ("change settings of the network", "sorted({attempt_write(f'/proc/sys/net/{name}', '1') for name in ('ipv4/ip_forward', 'ipv4/ip_unprivileged_port_start', 'core/somaxconn', 'ipv4/ping_group_range')})", r"\[('(EACCES|EROFS|ENOENT|EPERM)',? ?)+\]"),
    "names": ("resolve names by the host's name server", "try:\n    socket.getaddrinfo('metadata.google.internal', 80)\n    seen = 'done'\nexcept socket.gaierror:\n    seen = 'unknown'\nseen", "unknown"),
    "interfaces": ("have another interface than loopback", "socket.if_nameindex()", r"\[\(1, 'lo'\)\]"),
}  # fmt: skip

ATTACKS: list[Attack] = attacks(CATEGORY, _TABLE)
