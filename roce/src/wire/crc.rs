//! Arithmetic with registers of the ICRC's CRC, for [`solve_identification`](super::solve_identification) and
//! [`IcrcAmender`](super::IcrcAmender). A register is a polynomial modulo that of the CRC. Its highest bit is the coefficient of x^0.

/// The polynomial of the CRC.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Powers of x^8, with the exponents 1, 2, 4 to 2^15. Multiplying a register by x^8 has the effect of a byte of zeros.
const POWERS: [u32; 16] = squares(1 << (31 - 8));

/// Powers of x^-8, which remove the effect of a byte of zeros.
const POWERS_BACK: [u32; 16] = {
    let mut back = 1 << 31;
    let mut bit = 0;
    while bit < 8 {
        // Division by x.
        back = if back >> 31 == 0 { back << 1 } else { (back ^ POLYNOMIAL) << 1 | 1 };
        bit += 1;
    }
    squares(back)
};

/// Returns a polynomial and its repeated squares.
#[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "an index is below 16")]
const fn squares(first: u32) -> [u32; 16] {
    let mut powers = [first; 16];
    let mut power = 1;
    while power < 16 {
        powers[power] = multiply(powers[power - 1], powers[power - 1]);
        power += 1;
    }
    powers
}

/// Returns the product of two polynomials, modulo that of the CRC.
pub(super) const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a >> 31 != 0 {
            product ^= b;
        }
        a <<= 1;
        // Multiplication by x.
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
    }
    product
}

/// Returns the register after `bytes` bytes of zeros, of a packet.
pub(super) fn with_zeros(register: u32, bytes: usize) -> u32 {
    by_power(register, &POWERS, bytes)
}

/// Returns the register before `bytes` bytes of zeros, of a packet.
pub(super) fn without_zeros(register: u32, bytes: usize) -> u32 {
    by_power(register, &POWERS_BACK, bytes)
}

fn by_power(register: u32, powers: &[u32; 16], exponent: usize) -> u32 {
    let factors = (0..).zip(powers).filter(|(bit, _)| exponent >> bit & 1 == 1);
    factors.fold(register, |register, (_, power)| multiply(register, *power))
}
