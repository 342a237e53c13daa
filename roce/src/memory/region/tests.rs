//! Tests of the region table.

use super::*;
use crate::Discard;
use alloc::vec::Vec;
use proptest::prelude::*;

const PD: PdId = PdId(1);
const QPN: Qpn = Qpn::new(7);
const SECRET: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";

fn table(max: u32) -> RegionTable {
    RegionTable::new(max, &SECRET)
}

#[test]
fn an_access_inside_the_region_returns_its_slice() {
    let mut table = table(4);
    let region = table.register(PD, 0x1000, 64, Access::ALL).unwrap();
    let slice = table.remote(region.rkey, PD, QPN, 0x1010, 48, Access::REMOTE_WRITE).unwrap();
    assert_eq!((slice.address(), slice.len()), (0x1010, 48));
    assert_eq!(table.local(region.lkey, PD, 0x1000, 64, Access::LOCAL_WRITE), Ok(Slice::new(0x1000, 64)));
}

/// IBA 10.6.3: each region has an L_Key and an R_Key.
#[test]
fn the_keys_of_a_region_are_equal() {
    let mut table = table(4);
    let region = table.register(PD, 0x1000, 64, Access::ALL).unwrap();
    assert_eq!(region.lkey.get(), region.rkey.get());
    assert!(table.remote(Rkey::new(region.lkey.get()), PD, QPN, 0x1000, 64, Access::REMOTE_WRITE).is_ok());
}

#[test]
fn each_refused_access_has_its_reason() {
    let mut table = table(4);
    let region = table.register(PD, 0x1000, 64, Access::REMOTE_READ).unwrap();
    let ask =
        |key, pd, address, length, access| table.remote(key, pd, QPN, address, length, access).unwrap_err();
    let read = Access::REMOTE_READ;
    assert_eq!(ask(Rkey::new(region.rkey.get() ^ 1), PD, 0x1000, 1, read), AccessError::UnknownKey);
    assert_eq!(ask(region.rkey, PdId(2), 0x1000, 1, read), AccessError::ProtectionDomain);
    assert_eq!(ask(region.rkey, PD, 0x1000, 1, Access::REMOTE_WRITE), AccessError::Access);
    for (address, length) in
        [(0xfff, 1), (0x1000, 65), (0x103f, 2), (0x1041, 0), (u64::MAX, u32::MAX), (0, 1)]
    {
        assert_eq!(ask(region.rkey, PD, address, length, read), AccessError::Range, "{address:#x} {length}");
    }
    assert_eq!(AccessError::Range.discard(), Discard::RemoteRange);
}

#[test]
fn a_changed_region_keeps_its_keys_and_nothing_else() {
    let mut table = table(4);
    let region = table.register(PD, 0x1000, 64, Access::REMOTE_WRITE).unwrap();
    let other = PdId(2);
    let wanted = Region { address: 0x2000, origin: 0, length: 32, access: Access::REMOTE_READ, ..region };
    let refused = table.change(region.lkey, other, &Region { length: 0, ..wanted });
    assert!(matches!(refused, Err(ControlError::Value { .. })));
    assert!(table.remote(region.rkey, PD, QPN, 0x1000, 64, Access::REMOTE_WRITE).is_ok(), "it is as it was");
    assert_eq!(table.change(region.lkey, other, &wanted), Ok(wanted));
    let ask = |pd, address, access| table.remote(region.rkey, pd, QPN, address, 32, access);
    assert_eq!(ask(other, 0, Access::REMOTE_READ), Ok(Slice::new(0x2000, 32)));
    assert_eq!(ask(other, 0x1000, Access::REMOTE_READ), Err(AccessError::Range));
    assert_eq!(ask(other, 0, Access::REMOTE_WRITE), Err(AccessError::Access));
    assert_eq!(ask(PD, 0, Access::REMOTE_READ), Err(AccessError::ProtectionDomain));
    table.deregister(region.lkey).unwrap();
    assert_eq!(table.change(region.lkey, PD, &wanted), Err(ControlError::NoRegion(region.lkey)));
}

/// IBA 10.6.3: a local and a remote key have different uses.
#[test]
fn invalid_registrations_are_refused() {
    let mut table = table(1);
    assert!(matches!(table.register(PD, 8, 0, Access::ALL), Err(ControlError::Value { value: 0, .. })));
    assert!(matches!(
        table.register(PD, u64::MAX, 1, Access::ALL),
        Err(ControlError::Value { limit: 0, .. })
    ));
    let region = table.register(PD, u64::MAX - 1, 1, Access::ALL).unwrap();
    assert_eq!(
        table.register(PD, 0, 1, Access::ALL),
        Err(ControlError::Limit { what: "memory regions", limit: 1 })
    );
    assert_eq!(table.deregister(region.lkey), Ok(region));
    assert_eq!(table.deregister(region.lkey), Err(ControlError::NoRegion(region.lkey)));
    assert!(table.is_empty());
}

#[test]
fn keys_of_a_place_used_again_and_again_are_all_different() {
    let mut table = table(2);
    let mut keys = Vec::new();
    for _ in 0..20_000 {
        let region = table.register(PD, 0, 64, Access::ALL).unwrap();
        keys.push(region.rkey.get());
        table.deregister(region.lkey).unwrap();
    }
    keys.sort_unstable();
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Register { address: u64, length: u64 },
    Deregister { which: usize },
    Ask { which: usize, address: u64, length: u32 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let place = prop_oneof![0u64..256, u64::MAX - 256..=u64::MAX, any::<u64>()];
    let span = prop_oneof![0u64..256, any::<u64>()];
    prop_oneof![
        (place.clone(), span).prop_map(|(address, length)| Operation::Register { address, length }),
        any::<usize>().prop_map(|which| Operation::Deregister { which }),
        (any::<usize>(), place, prop_oneof![0u32..256, any::<u32>()])
            .prop_map(|(which, address, length)| Operation::Ask { which, address, length }),
    ]
}

proptest! {
    /// Every region ever created stays in the model. The keys of a deregistered one must stay unknown.
    #[test]
    fn only_live_regions_and_only_their_bytes_are_reached(
        max in 1u32..6, secret: [u8; 32], operations in prop::collection::vec(operation(), 1..120)
    ) {
        let mut table = RegionTable::new(max, &secret);
        let mut made: Vec<(Region, bool)> = Vec::new();
        for operation in operations {
            match operation {
                Operation::Register { address, length } => {
                    let fits = length != 0 && u128::from(address) + u128::from(length) <= u128::from(u64::MAX);
                    let live = made.iter().filter(|(_, live)| *live).count();
                    let result = table.register(PD, address, length, Access::ALL);
                    prop_assert_eq!(result.is_ok(), fits && live < max as usize);
                    made.extend(result.ok().map(|region| (region, true)));
                }
                Operation::Deregister { which } if !made.is_empty() => {
                    let which = which % made.len();
 let (region, live) = &mut made[which];
                    prop_assert_eq!(table.deregister(region.lkey).is_ok(), *live);
                    *live = false;
                }
                Operation::Ask { which, address, length } if !made.is_empty() => {
                    let (region, live) = made[which % made.len()];
                    let end = u128::from(address) + u128::from(length);
                    let inside = address >= region.address
                        && end <= u128::from(region.address) + u128::from(region.length);
                    let expected = match (live, inside) {
                        (false, _) => Err(AccessError::UnknownKey),
                        (true, false) => Err(AccessError::Range),
                        (true, true) => Ok(Slice::new(address, length)),
                    };
                    let remote = table.remote(region.rkey, PD, QPN, address, length, Access::REMOTE_READ);
                    prop_assert_eq!(remote, expected);
                    prop_assert_eq!(table.local(region.lkey, PD, address, length, Access::LOCAL_READ), expected);
                }
                Operation::Deregister { .. } | Operation::Ask { .. } => {}
            }
        }
    }
}
