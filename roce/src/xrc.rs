//! XRC domains, which associate targets with shared receive queues (IBA annex A14).

use crate::{ControlError, XrcdId};
use alloc::vec::Vec;

#[derive(Debug, Default)]
pub(crate) struct XrcDomains {
    /// Number of targets and queues of each domain.
    users: Vec<Option<u32>>,
}

impl XrcDomains {
    /// Limit of the domains of one endpoint.
    const LIMIT: u32 = 4096;

    pub(crate) fn create(&mut self) -> Result<XrcdId, ControlError> {
        let place = self.users.iter().position(Option::is_none).unwrap_or(self.users.len());
        if place as u32 >= Self::LIMIT {
            return Err(ControlError::Limit { what: "XRC domains", limit: Self::LIMIT });
        }
        if place == self.users.len() {
            self.users.push(None);
        }
        self.users[place] = Some(0);
        Ok(XrcdId(place as u32))
    }

    pub(crate) fn destroy(&mut self, domain: XrcdId) -> Result<(), ControlError> {
        match *self.users(domain)? {
            0 => {
                self.users[domain.0 as usize] = None;
                Ok(())
            }
            users => Err(ControlError::XrcdBusy { domain, users }),
        }
    }

    /// Counts a target or a queue of the domain.
    pub(crate) fn join(&mut self, domain: XrcdId) -> Result<(), ControlError> {
        *self.users(domain)? += 1;
        Ok(())
    }

    pub(crate) fn leave(&mut self, domain: XrcdId) {
        if let Ok(users) = self.users(domain) {
            *users -= 1;
        }
    }

    fn users(&mut self, domain: XrcdId) -> Result<&mut u32, ControlError> {
        let users = self.users.get_mut(domain.0 as usize).and_then(Option::as_mut);
        users.ok_or(ControlError::NoXrcd(domain))
    }
}
