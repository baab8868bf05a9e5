//! Number formats of embeddings in bytes, by vLLM's names.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct EmbedDtype {
    pub(in crate::api) name: &'static str,
    exponent_bits: u32,
    mantissa_bits: u32,
}

/// vLLM's formats, the default first.
const DTYPES: [EmbedDtype; 5] = [
    EmbedDtype { name: "float32", exponent_bits: 8, mantissa_bits: 23 },
    EmbedDtype { name: "float16", exponent_bits: 5, mantissa_bits: 10 },
    EmbedDtype { name: "bfloat16", exponent_bits: 8, mantissa_bits: 7 },
    EmbedDtype { name: "fp8_e4m3", exponent_bits: 4, mantissa_bits: 3 },
    EmbedDtype { name: "fp8_e5m2", exponent_bits: 5, mantissa_bits: 2 },
];

impl EmbedDtype {
    /// Returns the format with this name, or the default. The error lists the names.
    pub(in crate::api) fn named(name: Option<&str>) -> Result<Self, String> {
        let Some(name) = name else { return Ok(DTYPES[0]) };
        let names = || format!("`{}`", DTYPES.map(|dtype| dtype.name).join("`, `"));
        DTYPES.into_iter().find(|dtype| dtype.name == name).ok_or_else(names)
    }

    /// Appends a number in this format. Numbers of embeddings are between -1 and 1, which is within the range of
    /// all formats.
    pub(in crate::api) fn write(self, number: f32, is_big_endian: bool, out: &mut Vec<u8>) {
        let size = (1 + self.exponent_bits + self.mantissa_bits) as usize / 8;
        let bits = self.bits(number);
        if is_big_endian {
            out.extend_from_slice(&bits.to_be_bytes()[4 - size..]);
        } else {
            out.extend_from_slice(&bits.to_le_bytes()[..size]);
        }
    }

    /// Rounds to the nearest number of the format, ties to even.
    fn bits(self, number: f32) -> u32 {
        if self.mantissa_bits == 23 {
            return number.to_bits();
        }
        let sign = u32::from(number.is_sign_negative()) << (self.exponent_bits + self.mantissa_bits);
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        // Subnormal numbers use the smallest exponent and have no leading 1.
        let exponent = ((number.to_bits() >> 23) & 0xff).cast_signed() - 127;
        let exponent = exponent.max(1 - bias);
        let unit_exponent = i64::from(exponent) - i64::from(self.mantissa_bits);
        let unit = f64::from_bits((1023 + unit_exponent).cast_unsigned() << 52);
        let units = (f64::from(number.abs()) / unit).round_ties_even() as u32;
        // If there is a leading 1, it adds 1 to the exponent.
        let before = (exponent + bias - 1).cast_unsigned() << self.mantissa_bits;
        sign | (before + units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_their_format() {
        for (name, one, tenth, small) in [
            ("float32", 0x3f80_0000, 0x3dcc_cccd, 0x3586_37bd),
            ("float16", 0x3c00, 0x2e66, 0x0011),
            ("bfloat16", 0x3f80, 0x3dcd, 0x3586),
            ("fp8_e4m3", 0x38, 0x1d, 0),
            ("fp8_e5m2", 0x3c, 0x2e, 0),
        ] {
            let dtype = EmbedDtype::named(Some(name)).expect("it is one");
            assert_eq!([1.0, 0.1, 1e-6].map(|number| dtype.bits(number)), [one, tenth, small], "{name}");
            let sign = 1 << (dtype.exponent_bits + dtype.mantissa_bits);
            assert_eq!((dtype.bits(-1.0), dtype.bits(0.0)), (sign | one, 0), "{name}");
        }
        assert_eq!(EmbedDtype::named(None).map(|dtype| dtype.name), Ok("float32"));
        assert!(EmbedDtype::named(Some("int8")).is_err_and(|names| names.starts_with("`float32`, `float16`")));
    }

    #[test]
    fn bytes_are_in_their_order() {
        let half = EmbedDtype::named(Some("float16")).expect("it is one");
        let mut bytes = Vec::new();
        half.write(0.1, true, &mut bytes);
        half.write(0.1, false, &mut bytes);
        assert_eq!(bytes, [0x2e, 0x66, 0x66, 0x2e]);
    }
}
