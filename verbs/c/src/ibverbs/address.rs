//! Address handles: the destinations of datagrams.

use crate::abi::*;
use crate::errno::{Errno, INVALID, at, count, created, injected, out, status};
use crate::ibverbs::context::Context;
use crate::ibverbs::domain::Pd;
use crate::ibverbs::live_objects;
use crate::ibverbs::query::{gid_of, ip_of};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use verbs::fault::Verb;
use verbs::{AddressHandle, AddressOptions};

#[repr(C)]
pub(crate) struct Ah {
    abi: ibv_ah,
    pub(crate) handle: AddressHandle,
}

/// `ibv_create_ah(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, wanted: *mut ibv_ah_attr) -> *mut ibv_ah {
    created(|| {
        injected(Verb::CreateAh)?;
        // SAFETY: the contract of the manual page.
        let (domain, wanted) = unsafe { (live_objects::find(pd.cast::<Pd>())?, at(wanted)?) };
        if wanted.is_global == 0 || wanted.port_num > 1 {
            tracing::warn!("ibv_create_ah: RoCE needs a GID, on port 1");
            return Err(INVALID);
        }
        let options = AddressOptions::new()
            .gid_index(usize::from(wanted.grh.sgid_index))
            .traffic_class(wanted.grh.traffic_class)
            .flow_label(wanted.grh.flow_label);
        // SAFETY: any 16 bytes are a GID.
        let destination = ip_of(unsafe { wanted.grh.dgid.raw });
        let handle = domain.domain.address(destination, &options)?;
        domain.users.fetch_add(1, Ordering::AcqRel);
        // SAFETY: the domain is alive.
        let abi = ibv_ah { context: unsafe { (*pd).context }, pd, handle: 0 };
        Ok(live_objects::publish(Ah { abi, handle }).cast())
    })
}

/// `ibv_destroy_ah(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    status(|| {
        // SAFETY: the program must not use the handle after this call; the domain lives as long as its handles.
        unsafe {
            let pd = live_objects::find_last(ah.cast::<Ah>())?.abi.pd;
            drop(live_objects::reclaim(ah.cast::<Ah>())?);
            live_objects::find(pd.cast::<Pd>())?.users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    })
}

/// Returns the source and the destination of a datagram, from the 40 bytes before it: an IPv6 header, or an IPv4 header in the last 20
/// bytes.
fn endpoints(grh: &[u8; 40]) -> Result<[[u8; 16]; 2], Errno> {
    let v4 = |at: usize| gid_of([grh[at], grh[at + 1], grh[at + 2], grh[at + 3]].into());
    let v6 = |at: usize| std::array::from_fn(|n| grh[at + n]);
    match (grh[0] >> 4, grh[20] >> 4) {
        (6, _) => Ok([v6(8), v6(24)]),
        (_, 4) => Ok([v4(32), v4(36)]),
        _ => Err(INVALID),
    }
}

/// # Safety
/// The caller must pass null or an open context. The other pointers must be null or valid as ibv_init_ah_from_wc(3) requires.
unsafe fn reply_path(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, Errno> {
    // SAFETY: guaranteed by the caller; a GRH has 40 bytes.
    let (context, wc, grh) = unsafe { (Context::from(context)?, at(wc)?, at(grh.cast::<[u8; 40]>())?) };
    if port != 1 || wc.wc_flags & IBV_WC_GRH == 0 {
        return Err(INVALID);
    }
    let [sender, receiver] = endpoints(grh)?;
    let ours = ip_of(receiver);
    let info = context.device.query()?;
    let index = match ours.is_multicast() {
        true => info.gid_towards(ip_of(sender)),
        false => info.gids.position(ours).ok_or(INVALID)?,
    };
    let mut attributes = ibv_ah_attr { is_global: 1, port_num: port, sl: wc.sl, ..Default::default() };
    attributes.grh.dgid = ibv_gid { raw: sender };
    attributes.grh.sgid_index = u8::try_from(index).map_err(|_| INVALID)?;
    attributes.grh.hop_limit = 64;
    Ok(attributes)
}

/// `ibv_init_ah_from_wc(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    into: *mut ibv_ah_attr,
) -> c_int {
    count(|| {
        // SAFETY: the contract of the manual page.
        unsafe { *out(into)? = reply_path(context, port, wc, grh)? };
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    created(|| {
        // SAFETY: the contract of the manual page.
        unsafe {
            let mut attributes = reply_path(live_objects::find(pd.cast::<Pd>())?.context(), port, wc, grh)?;
            Ok(ibv_create_ah(pd, &mut attributes))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoints_of_a_datagram_are_read_from_either_header() {
        let mut v4 = [0; 40];
        v4[20] = 0x45;
        v4[32..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(endpoints(&v4).unwrap().map(ip_of).map(|ip| ip.to_string()), ["10.0.0.1", "10.0.0.2"]);
        let mut v6 = [0; 40];
        (v6[0], v6[8], v6[23], v6[24], v6[39]) = (0x60, 0xfd, 1, 0xfd, 2);
        assert_eq!(endpoints(&v6).unwrap().map(ip_of).map(|ip| ip.to_string()), ["fd00::1", "fd00::2"]);
        assert_eq!(endpoints(&[0; 40]), Err(INVALID));
    }
}
