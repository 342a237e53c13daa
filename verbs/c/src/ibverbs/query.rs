//! Queries of a device, its port, its GIDs and P_Keys.

use crate::abi::*;
use crate::errno::{Errno, INVALID, count, injected, out, status};
use crate::ibverbs::context::Context;
use crate::ibverbs::{device_memory, on_demand, work_queue};
use std::ffi::c_int;
use std::net::IpAddr;
use verbs::fault::Verb;
use verbs::port::{GidTable, MAX_GROUPS, MAX_MEMBERS};
use verbs::sysfs::{PORT_CAPABILITIES, width_and_speed};
use verbs::{Device, DeviceInfo, Mtu};

/// Vendor id of no vendor, because programs have special cases for some vendors' devices.
const VENDOR: u32 = 0xff_ff00;
/// P_Key of the only partition: the default partition, full membership.
const DEFAULT_PARTITION: u16 = 0xffff;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED`: addresses are GIDs.
const GRH_REQUIRED: u8 = 1;
/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL`
const FLUSH_GLOBAL: u64 = 1 << 38;
/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`
const ATOMIC_WRITE: u64 = 1 << 40;
/// Physical state: link up.
const LINK_UP: u8 = 5;
/// Physical state: polling.
const LINK_POLLING: u8 = 2;
/// Code of RoCE v2 in Linux, as `ibv_devinfo` queries it.
const SYSFS_ROCE_V2: c_int = 1;
/// Code of an entry without a GID: InfiniBand or RoCE v1.
const SYSFS_ROCE_V1: c_int = 0;
/// The kernel's errno for an entry of the GID table without a GID.
const EMPTY: Errno = Errno(libc::ENODATA);

/// Returns an address as a GID: IPv4 is mapped into IPv6 (IBA A17.5).
pub(crate) fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

pub(crate) fn ip_of(gid: [u8; 16]) -> IpAddr {
    IpAddr::from(gid).to_canonical()
}

/// Returns the code of a path MTU: 1 for 256 bytes to 5 for 4096 bytes.
pub(crate) fn mtu_code(mtu: Mtu) -> ibv_mtu {
    mtu.code().into()
}

pub(crate) fn mtu_of(code: ibv_mtu) -> Result<Mtu, Errno> {
    u8::try_from(code).ok().and_then(Mtu::from_code).ok_or(INVALID)
}

fn first_port(port: u32) -> Result<(), Errno> {
    if port == 1 { Ok(()) } else { Err(INVALID) }
}

/// # Safety
/// As [`Context::from`].
unsafe fn info(context: *mut ibv_context) -> Result<DeviceInfo, Errno> {
    // SAFETY: passed on.
    Ok(unsafe { Context::from(context) }?.device.query()?)
}

fn device_attributes(info: &DeviceInfo, guid: [u8; 8]) -> ibv_device_attr {
    let (limits, raw) = (&info.limits, info.longest_frame);
    let number = |limit: u32| limit as c_int;
    let mut attributes = ibv_device_attr {
        node_guid: u64::from_ne_bytes(guid),
        sys_image_guid: u64::from_ne_bytes(guid),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: VENDOR,
        max_qp: number(limits.max_qps),
        max_qp_wr: number(limits.max_requests),
        device_cap_flags: IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | IBV_DEVICE_MEM_MGT_EXTENSIONS
            | IBV_DEVICE_XRC
            | raw.map_or(0, |_| IBV_DEVICE_MANAGED_FLOW_STEERING),
        max_sge: number(limits.max_sge),
        max_sge_rd: number(limits.max_sge),
        max_cq: number(limits.max_cqs),
        max_cqe: number(limits.max_cq_depth),
        max_mr: number(limits.max_regions),
        max_mw: number(limits.max_regions),
        max_pd: number(limits.max_regions),
        max_qp_rd_atom: c_int::from(limits.max_rd_atomic),
        max_res_rd_atom: c_int::from(limits.max_rd_atomic) * number(limits.max_qps),
        max_qp_init_rd_atom: c_int::from(limits.max_rd_atomic),
        atomic_cap: IBV_ATOMIC_HCA,
        max_ah: 1 << 16,
        max_mcast_grp: number(MAX_GROUPS),
        max_mcast_qp_attach: number(MAX_MEMBERS),
        max_total_mcast_qp_attach: number(MAX_GROUPS * MAX_MEMBERS),
        max_srq: number(limits.max_cqs),
        max_srq_wr: number(limits.max_requests),
        max_srq_sge: number(limits.max_sge),
        max_pkeys: 1,
        max_raw_ethy_qp: raw.map_or(0, |_| number(limits.max_qps)),
        phys_port_cnt: 1,
        ..Default::default()
    };
    for (to, from) in attributes.fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as std::ffi::c_char;
    }
    attributes
}

/// `ibv_query_device(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, into: *mut ibv_device_attr) -> c_int {
    status(|| {
        injected(Verb::QueryDevice)?;
        // SAFETY: the contract of the manual page.
        let (context, into) = unsafe { (Context::from(context)?, out(into)?) };
        *into = device_attributes(context.device.opened(), context.configured.guid);
        Ok(())
    })
}

/// `ibv_query_device_ex(3)`, for a structure of `size` bytes: older programs have a shorter one.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    into: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    status(|| {
        injected(Verb::QueryDevice)?;
        // SAFETY: null, or the program's structure.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) || into.is_null() {
            return Err(INVALID);
        }
        if size < size_of::<ibv_device_attr>() {
            return Err(INVALID);
        }
        // SAFETY: the contract of the manual page.
        let context = unsafe { Context::from(context) }?;
        let orig_attr = device_attributes(context.device.opened(), context.configured.guid);
        let mut whole = ibv_device_attr_ex {
            orig_attr,
            phys_port_cnt_ex: 1,
            device_cap_flags_ex: orig_attr.device_cap_flags as u64 | FLUSH_GLOBAL | ATOMIC_WRITE,
            ..Default::default()
        };
        on_demand::capabilities(&mut whole);
        if orig_attr.max_raw_ethy_qp > 0 {
            work_queue::capabilities(&mut whole);
        }
        whole.max_dm_size = device_memory::SIZE as u64;
        // SAFETY: the program has room for `size` bytes, and `length` is at most the size of `whole`.
        unsafe {
            let length = size.min(size_of::<ibv_device_attr_ex>());
            into.cast::<u8>().copy_from_nonoverlapping((&raw const whole).cast(), length);
        }
        Ok(())
    })
}

fn port_attributes(device: &Device) -> Result<ibv_port_attr, Errno> {
    let info = device.query()?;
    let (state, phys_state) =
        if device.link_is_up() { (IBV_PORT_ACTIVE, LINK_UP) } else { (IBV_PORT_DOWN, LINK_POLLING) };
    let (active_width, active_speed) = width_and_speed(info.speed_mbps);
    Ok(ibv_port_attr {
        state,
        max_mtu: IBV_MTU_4096,
        active_mtu: mtu_code(info.mtu),
        gid_tbl_len: GidTable::LIMIT as c_int,
        port_cap_flags: PORT_CAPABILITIES,
        max_msg_sz: 1 << 31,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width,
        active_speed,
        phys_state,
        link_layer: ETHERNET,
        flags: GRH_REQUIRED,
        ..Default::default()
    })
}

/// # Safety
/// The caller must pass an open context, and null or room for `size` bytes.
unsafe fn write_port(context: *mut ibv_context, port: u8, into: *mut u8, size: usize) -> Result<(), Errno> {
    if into.is_null() {
        return Err(INVALID);
    }
    first_port(port.into())?;
    // SAFETY: passed on.
    let attributes = port_attributes(&unsafe { Context::from(context) }?.device)?;
    let length = size.min(size_of::<ibv_port_attr>());
    // SAFETY: `into` has `size` bytes, and `length` is at most the size of `attributes`.
    unsafe { into.copy_from_nonoverlapping((&raw const attributes).cast(), length) };
    Ok(())
}

/// `ibv_query_port(3)`, as the headers call it.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    status(|| {
        injected(Verb::QueryPort)?;
        // SAFETY: passed on.
        unsafe { write_port(context, port, into.cast(), size) }
    })
}

/// `ibv_query_port(3)` for programs that were compiled when `flags` was the last field of the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut _compat_ibv_port_attr,
) -> c_int {
    let size = std::mem::offset_of!(ibv_port_attr, flags) + 1;
    status(|| {
        injected(Verb::QueryPort)?;
        // SAFETY: passed on; `size` is the size of the older structure.
        unsafe { write_port(context, port, into.cast(), size) }
    })
}

/// `ibv_query_gid(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    count(|| {
        injected(Verb::QueryGid)?;
        first_port(port.into())?;
        // SAFETY: the contract of the manual page.
        let (info, gid) = unsafe { (info(context)?, out(gid)?) };
        let entry = usize::try_from(index).map_err(|_| INVALID).and_then(|index| address_at(&info, index));
        // As in rdma-core, an entry without a GID is a GID of zeros.
        gid.raw = match entry {
            Err(EMPTY) => [0; 16],
            entry => gid_of(entry?),
        };
        Ok(0)
    })
}

/// Returns the kernel's code for the type of a GID: RoCE v2 for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut c_int,
) -> c_int {
    count(|| {
        first_port(port.into())?;
        // SAFETY: the contract of the function.
        let (info, kind) = unsafe { (info(context)?, out(kind)?) };
        *kind = match address_at(&info, index as usize) {
            Err(EMPTY) => SYSFS_ROCE_V1,
            entry => entry.map(|_| SYSFS_ROCE_V2)?,
        };
        Ok(0)
    })
}

/// Returns the address at `index`. Returns `ENODATA` for an entry without a GID, and `EINVAL` outside the table.
fn address_at(info: &DeviceInfo, index: usize) -> Result<IpAddr, Errno> {
    let empty = if index < GidTable::LIMIT { EMPTY } else { INVALID };
    info.gids.get(index).ok_or(empty)
}

fn gid_entry(info: &DeviceInfo, index: usize) -> Result<ibv_gid_entry, Errno> {
    let gid = ibv_gid { raw: gid_of(address_at(info, index)?) };
    let ndev_ifindex = info.interface.unwrap_or(0);
    let gid_index = index as u32;
    Ok(ibv_gid_entry { gid, gid_index, port_num: 1, gid_type: IBV_GID_TYPE_ROCE_V2, ndev_ifindex })
}

/// `ibv_query_gid_ex(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    status(|| {
        injected(Verb::QueryGid)?;
        first_port(port)?;
        if flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(INVALID);
        }
        // SAFETY: the contract of the manual page.
        let (info, entry) = unsafe { (info(context)?, out(entry)?) };
        *entry = gid_entry(&info, index as usize)?;
        Ok(())
    })
}

/// `ibv_query_gid_table(3)`: returns the number of entries, or a negative error number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut found = 0;
    let failed = status(|| {
        if flags != 0 || size < size_of::<ibv_gid_entry>() || (entries.is_null() && most > 0) {
            return Err(INVALID);
        }
        // SAFETY: the contract of the manual page.
        let info = unsafe { info(context) }?;
        let present: Vec<_> = info.gids.entries().map(|(index, _)| index).collect();
        if present.len() > most {
            return Err(INVALID);
        }
        for (place, index) in present.iter().enumerate() {
            let entry = gid_entry(&info, *index)?;
            // SAFETY: the array has `most` places of `size` bytes.
            unsafe { entries.byte_add(place * size).write(entry) };
        }
        found = present.len() as isize;
        Ok(())
    });
    if failed == 0 { found } else { -(failed as isize) }
}

/// `ibv_query_pkey(3)`: the P_Key is in network byte order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    key: *mut u16,
) -> c_int {
    count(|| {
        first_port(port.into())?;
        // SAFETY: the contract of the manual page.
        let (_, key) = unsafe { (Context::from(context)?, out(key)?) };
        if index != 0 {
            return Err(INVALID);
        }
        *key = DEFAULT_PARTITION.to_be();
        Ok(0)
    })
}

/// `ibv_get_pkey_index(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, key: u16) -> c_int {
    count(|| {
        first_port(port.into())?;
        if u16::from_be(key) & 0x7fff == DEFAULT_PARTITION & 0x7fff { Ok(0) } else { Err(INVALID) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA A17.5.
    #[test]
    fn addresses_are_gids_and_back() {
        for ip in ["10.0.0.1", "fe80::1", "2001:db8::7"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(ip_of(gid_of(ip)), ip);
        }
        assert_eq!(gid_of("10.0.0.1".parse().unwrap())[10..], [0xff, 0xff, 10, 0, 0, 1]);
    }

    #[test]
    fn mtu_codes_are_those_of_the_headers() {
        for (mtu, code) in
            Mtu::ALL.into_iter().zip([IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096])
        {
            assert_eq!(mtu_code(mtu), code);
            assert_eq!(mtu_of(code), Ok(mtu));
        }
        assert_eq!((mtu_of(0), mtu_of(6)), (Err(INVALID), Err(INVALID)));
    }
}
