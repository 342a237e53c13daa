//! A DPDK device, shared by its queues.

use super::eal;
use super::pool::Pool;
use crate::fork;
use dpdk_sys as dpdk;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Serializes opening and closing, because the error messages of all devices go to one log.
static SETUP: Mutex<()> = Mutex::new(());

/// Waits until no other thread opens or closes a device. Returns `None` in a forked child if a thread of the parent was opening one.
pub(super) fn one_at_a_time() -> Option<MutexGuard<'static, ()>> {
    fork::lock(&SETUP)
}

/// A DPDK device. Dropping the last reference closes it.
pub(super) struct Device {
    pub(super) id: u16,
    is_memif: bool,
    /// Pools into which its queues receive. They outlive the device.
    pools: Mutex<Vec<Arc<Pool>>>,
}

impl Device {
    pub(super) fn new(id: u16, driver: &str, pool: Arc<Pool>) -> Self {
        Self { id, is_memif: driver == "net_memif", pools: Mutex::new(vec![pool]) }
    }

    pub(super) fn keep(&self, pool: Arc<Pool>) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _one_at_a_time = SETUP.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.id;
        if self.is_memif {
            // The peer may disconnect at the same time. memif's handler on the interrupt thread must not run during the close.
            eal::on_interrupt_thread(move || close(id));
        } else {
            close(id);
        }
    }
}

fn close(id: u16) {
    let device = device_info(id).device;
    // SAFETY: the port exists until this closes it, and no queue is in use: the last owner is being dropped.
    unsafe {
        dpdk::rte_eth_dev_stop(id);
        dpdk::rte_eth_dev_close(id);
    }
    if !device.is_null() {
        // SAFETY: the device outlives its port, and has no other port.
        unsafe { dpdk::rte_dev_remove(device) };
    }
}

pub(super) fn device_info(id: u16) -> dpdk::ferroce_device {
    // SAFETY: DPDK refuses a port that does not exist.
    unsafe { dpdk::ferroce_device_of(id) }
}

pub(super) fn link_is_up(id: u16) -> bool {
    link(id).up
}

pub(super) fn link(id: u16) -> dpdk::ferroce_link {
    // SAFETY: DPDK refuses a port that does not exist.
    unsafe { dpdk::ferroce_link_of(id) }
}
