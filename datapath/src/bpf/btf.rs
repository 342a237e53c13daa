//! Reads the kernel's BTF: offsets of structure members, and ids of functions.

use std::io;
use std::path::Path;

pub(crate) const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// Kinds of types, `BTF_KIND_*`.
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const TYPE_TAG: u32 = 18;

/// The kernel's types by their id. Id 0 is `void`.
pub(crate) struct Btf {
    bytes: Vec<u8>,
    strings: usize,
    types: Vec<usize>,
}

/// The header of a type. For some kinds, `size` is the id of another type. `at` is the offset of its members.
#[derive(Clone, Copy)]
struct Head {
    name: u32,
    kind: u32,
    members: usize,
    has_bit_fields: bool,
    size: u32,
    at: usize,
}

impl Btf {
    pub(crate) fn of_kernel() -> io::Result<Self> {
        Self::parse(std::fs::read(Path::new(KERNEL))?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no BTF"))
    }

    /// Parses BTF. Returns `None` if `bytes` is not BTF in native byte order, or has a type of an unknown kind.
    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let half = bytes.first_chunk().map(|half| u16::from_ne_bytes(*half))?;
        let field = |at| word(&bytes, at).map(|value| value as usize);
        let (header, types, length, strings) = (field(4)?, field(8)?, field(12)?, field(16)?);
        let mut at = header.checked_add(types)?;
        let (end, strings) = (at.checked_add(length)?, header.checked_add(strings)?);
        let mut btf = Self { bytes, strings, types: vec![usize::MAX] };
        while half == 0xeb9f && at < end {
            btf.types.push(at);
            at = btf.head_at(at)?.end()?;
        }
        (half == 0xeb9f && at == end).then_some(btf)
    }

    fn head_at(&self, at: usize) -> Option<Head> {
        let [name, info, size] = [at, at + 4, at + 8].map(|at| word(&self.bytes, at));
        let info = info?;
        Some(Head {
            name: name?,
            kind: info >> 24 & 0x1f,
            members: (info & 0xffff) as usize,
            has_bit_fields: info >> 31 == 1,
            size: size?,
            at: at + 12,
        })
    }

    fn head(&self, id: u32) -> Option<Head> {
        self.head_at(*self.types.get(id as usize).filter(|at| **at != usize::MAX)?)
    }

    fn is_called(&self, offset: u32, name: &str) -> bool {
        let text = self.bytes.get(self.strings + offset as usize..).unwrap_or_default();
        text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    fn find(&self, kind: u32, name: &str) -> Option<u32> {
        (1..self.types.len() as u32).find(|id| {
            self.head(*id).is_some_and(|head| head.kind == kind && self.is_called(head.name, name))
        })
    }

    pub(crate) fn function(&self, name: &str) -> Option<u32> {
        self.find(FUNC, name)
    }

    /// Returns the id and the size in bytes of a structure.
    pub(crate) fn structure(&self, name: &str) -> Option<(u32, usize)> {
        let id = self.find(STRUCT, name)?;
        Some((id, self.head(id)?.size as usize))
    }

    /// Returns the index of a member in its structure, and its offset in bytes.
    pub(crate) fn member(&self, structure: u32, name: &str) -> Option<(u32, usize)> {
        self.member_below(structure, name, 8)
    }

    /// Also searches unnamed structures and unions, whose members C treats as those of the enclosing one. `depth` bounds the recursion.
    fn member_below(&self, structure: u32, name: &str, depth: u8) -> Option<(u32, usize)> {
        let mut head = self.head(structure)?;
        while matches!(head.kind, TYPEDEF..=RESTRICT | TYPE_TAG) && depth > 0 {
            head = self.head(head.size)?;
        }
        if !matches!(head.kind, STRUCT | UNION) || depth == 0 {
            return None;
        }
        (0..head.members).find_map(|index| {
            let at = head.at + index * 12;
            let [text, kind, bits] = [at, at + 4, at + 8].map(|at| word(&self.bytes, at));
            let bits = if head.has_bit_fields { bits? & 0xff_ffff } else { bits? };
            let offset = bits as usize / 8;
            if text? != 0 {
                return self.is_called(text?, name).then_some((index as u32, offset));
            }
            let (_, within) = self.member_below(kind?, name, depth - 1)?;
            Some((index as u32, offset + within))
        })
    }
}

impl Head {
    /// Returns the offset of the next type, or `None` for an unknown kind.
    fn end(self) -> Option<usize> {
        let (each, more) = match self.kind {
            1 | 14 | 17 => (0, 4),
            2 | 7 | TYPEDEF..=FUNC | 16 | TYPE_TAG => (0, 0),
            ARRAY => (0, 12),
            STRUCT | UNION | 15 | 19 => (12, 0),
            ENUM | FUNC_PROTO => (8, 0),
            _ => return None,
        };
        self.at.checked_add(self.members * each + more)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns BTF of `struct sock { struct { int first; union { int second; }; }; int third; }`, and of a function.
    fn example() -> Vec<u8> {
        let names = b"\0int\0sock\0first\0second\0third\0go\0";
        let [int, sock, first, second, third, go] = [1, 5, 10, 16, 23, 29];
        let kind = |kind: u32, members: u32| kind << 24 | members;
        let types = [
            [int, kind(1, 0), 4, 32].as_slice(),
            &[0, kind(UNION, 1), 4, second, 1, 0],
            &[0, kind(STRUCT, 2), 8, first, 1, 0, 0, 2, 32],
            &[sock, kind(STRUCT, 2), 12, 0, 3, 0, third, 1, 64],
            &[0, kind(FUNC_PROTO, 0), 0],
            &[go, kind(FUNC, 0), 5],
        ]
        .concat();
        let length = types.len() as u32 * 4;
        let mut bytes = Vec::from(0xeb9f_u16.to_ne_bytes());
        bytes.extend([1, 0]);
        bytes.extend([24, 0, length, length, names.len() as u32].into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend(types.into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend(names);
        bytes
    }

    #[test]
    fn members_of_structures_without_a_name_are_found() {
        let btf = Btf::parse(example()).unwrap();
        let (sock, size) = btf.structure("sock").unwrap();
        assert_eq!((sock, size), (4, 12));
        let members = ["first", "second", "third", "soc", "thirds"].map(|name| btf.member(sock, name));
        assert_eq!(members, [Some((0, 0)), Some((0, 4)), Some((1, 8)), None, None]);
        assert_eq!((btf.function("go"), btf.function("sock"), btf.structure("go")), (Some(6), None, None));
    }

    #[test]
    fn damaged_types_are_refused() {
        let good = example();
        for length in 0..good.len() - 1 {
            // A cut inside the names leaves the types intact. Only the missing names are then not found.
            let found = Btf::parse(good[..length].to_vec()).and_then(|btf| btf.structure("sock"));
            assert!(found.is_none() || length >= good.len() - 33 + 10, "{length} bytes");
        }
        let mut wrong = good;
        wrong[0] ^= 1;
        assert!(Btf::parse(wrong).is_none());
    }
}
