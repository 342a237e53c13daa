//! Queries and changes Linux interfaces. Uses ioctl, because `/sys` shows the network namespace in which it was mounted, which may differ
//! from the thread's own.

pub mod datagrams;
pub mod packet;
pub mod udp;

use crate::fork::CloseOnFork;
use crate::socket_option;
use roce::wire::Mac;
use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A network interface of the calling thread's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Interface index, from 1.
    pub index: u32,
    /// The largest IP packet in bytes.
    pub mtu: u32,
    /// Ethernet address; zero if the interface has none.
    pub mac: Mac,
    /// Whether the interface is up (`IFF_UP`).
    pub up: bool,
    /// Whether the interface has a carrier.
    pub running: bool,
    /// Speed in Mb/s, if the driver reports it.
    pub speed_mbps: Option<u32>,
}

/// Returns the names of all interfaces of the calling thread's network namespace.
pub fn interface_names() -> Vec<String> {
    // SAFETY: if_nameindex has no preconditions, and returns null or an array that ends with index 0.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Vec::new();
    }
    let mut names = Vec::new();
    let mut at = list;
    loop {
        // SAFETY: `at` points into the array, at most to its last entry.
        let entry = unsafe { &*at };
        if entry.if_index == 0 {
            break;
        }
        // SAFETY: an entry before the last has a NUL-terminated name, which lives until if_freenameindex.
        names.push(unsafe { CStr::from_ptr(entry.if_name) }.to_string_lossy().into_owned());
        // SAFETY: this entry does not have index 0, so there is a next one.
        at = unsafe { at.add(1) };
    }
    // SAFETY: if_nameindex returned `list`, and it is freed once.
    unsafe { libc::if_freenameindex(list) };
    names
}

/// Returns the properties of the interface `name`.
///
/// # Errors
/// Returns the kernel's error: `ENODEV` if there is no such interface.
pub fn interface(name: &str) -> io::Result<Interface> {
    let control = Control::new(name)?;
    let index = control.ask(libc::SIOCGIFINDEX)?;
    let mtu = control.ask(libc::SIOCGIFMTU)?;
    let flags = control.ask(libc::SIOCGIFFLAGS)?;
    let hardware = control.ask(libc::SIOCGIFHWADDR)?;
    // SAFETY: each request succeeded, so the kernel wrote its field of the union; all are integers, for which any bytes are valid.
    let (index, mtu, flags, address) = unsafe {
        (
            index.ifr_ifru.ifru_ifindex,
            mtu.ifr_ifru.ifru_mtu,
            i32::from(flags.ifr_ifru.ifru_flags),
            hardware.ifr_ifru.ifru_hwaddr.sa_data,
        )
    };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address) {
        *to = from as u8;
    }
    Ok(Interface {
        name: name.to_owned(),
        index: index as u32,
        mtu: mtu as u32,
        mac: Mac(mac),
        up: flags & libc::IFF_UP != 0,
        // Fallback: this flag follows the carrier with a delay of up to 1 s.
        running: control.has_carrier().unwrap_or(flags & libc::IFF_RUNNING != 0),
        speed_mbps: control.speed(),
    })
}

/// Returns true if an interface with this index exists, or if this cannot be determined.
#[must_use]
pub fn exists(index: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the array has room for the longest name with its NUL.
    let name = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    // Without a descriptor for the query, the answer is unknown.
    !name.is_null() || io::Error::last_os_error().raw_os_error() != Some(libc::ENXIO)
}

/// Makes the kernel kill `command` when the thread that started it ends, for example because its process ends.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    let ask = move || {
        // SAFETY: prctl takes integers here, getppid takes nothing, and both are async-signal-safe.
        let is_orphan = unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::getppid().cast_unsigned() != parent
        };
        // The kernel sends no signal if the parent ended before the prctl.
        if is_orphan { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
    };
    // SAFETY: between fork and exec, the closure neither allocates nor locks.
    unsafe { command.pre_exec(ask) }
}

/// Makes the kernel end `stream` with an error if its peer has not answered for about 25 s, even if nothing is sent.
///
/// # Errors
/// Returns the kernel's error if it refuses the options.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let options = [
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
        // Limit for unacknowledged data, in ms.
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 25_000),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    ];
    for (level, option, value) in options {
        let value: libc::c_int = value;
        socket_option::set(stream, level, option, &value)?;
    }
    Ok(())
}

/// Returns the properties of the interface with this index.
///
/// # Errors
/// Returns the kernel's error: `ENXIO` if there is no such interface.
pub fn interface_at(index: u32) -> io::Result<Interface> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the array has room for the longest name with its NUL.
    let name = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if name.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel wrote a NUL-terminated name to the array above.
    let name = unsafe { CStr::from_ptr(name) };
    interface(&name.to_string_lossy())
}

/// Changes the Ethernet address of the interface `name`.
///
/// # Errors
/// Returns the kernel's error: `EPERM` without CAP_NET_ADMIN, `ENODEV` if there is no such interface.
pub fn set_mac(name: &str, mac: Mac) -> io::Result<()> {
    let control = Control::new(name)?;
    let mut request = control.request();
    let mut data = [0; 14];
    for (to, from) in data.iter_mut().zip(mac.0) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: data };
    control.call(libc::SIOCSIFHWADDR, &mut request)
}

/// Returns true if `name` is a persistent tap to which a queue can be attached.
///
/// # Errors
/// Returns the kernel's error if the interface is no such tap, or `/dev/net/tun` cannot be opened.
pub fn is_lasting_tap(name: &str) -> io::Result<bool> {
    /// `_IOW('T', 202, int)` and `_IOR('T', 210, unsigned int)` of `linux/if_tun.h`, which `libc` lacks.
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    const TUNGETIFF: libc::c_ulong = 0x8004_54d2;
    let tun = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Control::new(name)?.request();
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    for what in [TUNSETIFF, TUNGETIFF] {
        // SAFETY: both requests take an ifreq, which `request` is; it is borrowed exclusively for the call.
        if unsafe { libc::ioctl(tun.as_raw_fd(), what as _, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: TUNGETIFF has written the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags) & libc::IFF_PERSIST != 0)
}

struct Control {
    socket: OwnedFd,
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl Control {
    fn new(name: &str) -> io::Result<Self> {
        let text = CString::new(name)?;
        let bytes = text.as_bytes_with_nul();
        if bytes.len() > libc::IFNAMSIZ {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let mut field = [0; libc::IFNAMSIZ];
        for (to, from) in field.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        // SAFETY: socket takes integers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self { socket: unsafe { OwnedFd::from_raw_fd(fd) }, name: field })
    }

    fn request(&self) -> libc::ifreq {
        libc::ifreq { ifr_name: self.name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 } }
    }

    fn call(&self, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: each request used here takes an ifreq, which `request` is; it is borrowed exclusively for the call. A caller that passes
        // a pointer in it keeps the target alive.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), what as _, request as *mut libc::ifreq) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn ask(&self, what: libc::c_ulong) -> io::Result<libc::ifreq> {
        let mut request = self.request();
        self.call(what, &mut request)?;
        Ok(request)
    }

    /// Passes `command`, an ethtool structure that begins with the command number, to the driver, which fills it in.
    ///
    /// # Safety
    /// The caller must pass a `command` that is as long as the structure of its command number, and for which every content is valid.
    unsafe fn ethtool<T>(&self, command: &mut T) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_data = std::ptr::from_mut(command).cast();
        self.call(libc::SIOCETHTOOL, &mut request)
    }

    /// Returns the driver's current carrier state, or `None` if the driver does not report it.
    fn has_carrier(&self) -> Option<bool> {
        const ETHTOOL_GLINK: u32 = 10;
        let mut command = [ETHTOOL_GLINK, 0];
        // SAFETY: `struct ethtool_value` is two numbers of 32 bits.
        unsafe { self.ethtool(&mut command) }.ok()?;
        Some(command[1] != 0)
    }

    /// Returns the speed in Mb/s by ETHTOOL_GSET, which all drivers that report a speed still support.
    fn speed(&self) -> Option<u32> {
        const ETHTOOL_GSET: u32 = 1;
        /// `struct ethtool_cmd` has 44 bytes, with the low half of the speed at offset 12 and the high half at 28.
        #[repr(C, align(4))]
        struct Command([u8; 44]);
        let mut command = Command([0; 44]);
        command.0[..4].copy_from_slice(&ETHTOOL_GSET.to_ne_bytes());
        // SAFETY: the structure has 44 bytes, of any value.
        unsafe { self.ethtool(&mut command) }.ok()?;
        let half = |at: usize| u32::from(u16::from_ne_bytes([command.0[at], command.0[at + 1]]));
        let speed = half(28) << 16 | half(12);
        // SPEED_UNKNOWN is all ones. Old drivers set only the low half.
        (speed != 0 && speed != u32::MAX && speed != 0xffff).then_some(speed)
    }
}

/// Joins a multicast group on the interface with this index. Dropping the returned value ends the membership.
///
/// # Errors
/// Returns the kernel's error: `ENODEV` if there is no such interface, `EINVAL` if the address is not multicast.
pub fn join_group(index: u32, group: IpAddr) -> io::Result<CloseOnFork> {
    let family = if group.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // The socket is not bound to a port, so it receives nothing.
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let joined = match group {
        IpAddr::V4(group) => {
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: u32::from(group).to_be() },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: index as libc::c_int,
            };
            socket_option::set(&socket, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)
        }
        IpAddr::V6(group) => {
            let ipv6mr_multiaddr = libc::in6_addr { s6_addr: group.octets() };
            let request = libc::ipv6_mreq { ipv6mr_multiaddr, ipv6mr_interface: index };
            socket_option::set(&socket, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)
        }
    };
    joined.map(|()| socket.into())
}

/// Returns the name of the interface's driver, such as `veth` or `mlx5_core`.
///
/// # Errors
/// Returns the kernel's error: `ENODEV` if there is no such interface, `EOPNOTSUPP` if it has no driver.
pub fn driver(name: &str) -> io::Result<String> {
    const ETHTOOL_GDRVINFO: u32 = 3;
    /// `struct ethtool_drvinfo` has 196 bytes and begins with the command and a name of 32 bytes.
    #[repr(C, align(4))]
    struct Command([u8; 196]);
    let mut command = Command([0; 196]);
    command.0[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
    let control = Control::new(name)?;
    // SAFETY: the structure has 196 bytes, of any value.
    unsafe { control.ethtool(&mut command) }?;
    let text = command.0[4..36].iter().take_while(|byte| **byte != 0).copied().collect();
    String::from_utf8(text).map_err(io::Error::other)
}

/// Returns the number of receive queues of the interface, or `None` if its driver does not report it.
#[must_use]
pub fn receive_queues(name: &str) -> Option<u32> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    // `struct ethtool_channels`: the command, four maxima, and the numbers of receive, transmit, other and combined queues.
    let mut command = [0_u32; 9];
    command[0] = ETHTOOL_GCHANNELS;
    let control = Control::new(name).ok()?;
    // SAFETY: the structure is nine numbers of 32 bits.
    unsafe { control.ethtool(&mut command) }.ok()?;
    Some(command[5] + command[8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known() {
        assert!(interface_names().iter().any(|name| name == "lo"));
        let lo = interface("lo").unwrap();
        assert_eq!((lo.index, lo.mac), (1, Mac([0; 6])));
        assert!(lo.mtu >= 1280, "{lo:?}");
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        assert_eq!(interface("no-such-if").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(interface("a-name-that-is-too-long").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
