//! Pages of a database, and the rows in the tree of a table.

use std::borrow::Cow;

use super::record::varint;

/// The first bytes of every database.
pub(super) const MAGIC: &[u8] = b"SQLite format 3\0";
/// The root page of the table that lists all others.
pub(super) const SCHEMA_ROOT: u32 = 1;

/// Length of the header before the first page's own.
const HEADER_BYTES: usize = 100;
/// Pages of a table's tree that have others below them.
const INTERIOR: u8 = 5;
/// Pages with rows.
const LEAF: u8 = 13;
/// Bytes of a page at least that are not reserved.
const MIN_USABLE_BYTES: usize = 480;

/// The pages of a database.
pub(super) struct Pages<'a> {
    bytes: &'a [u8],
    page_bytes: usize,
    /// Bytes of a page that hold something.
    usable_bytes: usize,
}

impl<'a> Pages<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, String> {
        let header = bytes.get(..HEADER_BYTES).filter(|header| header.starts_with(MAGIC));
        let header = header.ok_or("expected a SQLite database")?;
        let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 65_536,
            size => usize::from(size),
        };
        let usable_bytes = page_bytes.saturating_sub(usize::from(header[20]));
        if !page_bytes.is_power_of_two() || page_bytes < 512 || usable_bytes < MIN_USABLE_BYTES {
            return Err(format!("invalid database: its pages have {page_bytes} bytes"));
        }
        // 0 is that of a database without tables.
        let encoding = u32::from_be_bytes([header[56], header[57], header[58], header[59]]);
        if encoding > 1 {
            return Err("invalid database: expected texts in UTF-8, got UTF-16".to_owned());
        }
        Ok(Self { bytes, page_bytes, usable_bytes })
    }

    /// Calls `each` with every row of the table whose tree begins at `root`.
    pub(super) fn cells(&self, root: u32, mut each: impl FnMut(&[u8]) -> Result<(), String>) -> Result<(), String> {
        let mut pending = vec![root];
        let mut visits_left = self.bytes.len() / self.page_bytes;
        while let Some(number) = pending.pop() {
            let damaged = || format!("invalid database: page {number} is damaged");
            // A page is in one place of one tree.
            visits_left = visits_left.checked_sub(1).ok_or_else(damaged)?;
            let page = self.page(number).ok_or_else(damaged)?;
            let start = if number == SCHEMA_ROOT { HEADER_BYTES } else { 0 };
            let kind = page[start];
            let count = usize::from(word(page, start + 3).ok_or_else(damaged)?);
            let head = match kind {
                INTERIOR => 12,
                LEAF => 8,
                2 | 10 => return Err("the table has no row ids: it was made WITHOUT ROWID".to_owned()),
                _ => return Err(damaged()),
            };
            let places = (0..count).map(|index| word(page, start + head + 2 * index).map(usize::from));
            if kind == LEAF {
                for place in places {
                    each(&place.and_then(|place| self.payload(page, place)).ok_or_else(damaged)?)?;
                }
                continue;
            }
            let mut below: Vec<u32> = places
                .map(|place| place.and_then(|place| double_word(page, place)))
                .chain([double_word(page, start + 8)])
                .collect::<Option<_>>()
                .ok_or_else(damaged)?;
            below.reverse();
            pending.append(&mut below);
        }
        Ok(())
    }

    fn page(&self, number: u32) -> Option<&'a [u8]> {
        let start = (number as usize).checked_sub(1)?.checked_mul(self.page_bytes)?;
        self.bytes.get(start..start.checked_add(self.page_bytes)?)
    }

    /// The row in a cell, with what lies on pages of its own.
    fn payload(&self, page: &'a [u8], place: usize) -> Option<Cow<'a, [u8]>> {
        let (length, length_bytes) = varint(page.get(place..)?)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= self.bytes.len())?;
        let place = place + length_bytes;
        let (_, id_bytes) = varint(page.get(place..)?)?;
        let place = place + id_bytes;
        let local = self.local_bytes(length);
        let here = page.get(place..place + local)?;
        if local == length {
            return Some(Cow::Borrowed(here));
        }
        let mut whole = Vec::with_capacity(length);
        whole.extend_from_slice(here);
        let mut next = double_word(page, place + local)?;
        while whole.len() < length {
            let page = self.page(next)?;
            let part = (length - whole.len()).min(self.usable_bytes - 4);
            whole.extend_from_slice(page.get(4..4 + part)?);
            next = double_word(page, 0)?;
        }
        Some(Cow::Owned(whole))
    }

    /// Bytes of a row of this length that lie in its cell.
    fn local_bytes(&self, length: usize) -> usize {
        let most = self.usable_bytes - 35;
        if length <= most {
            return length;
        }
        let least = (self.usable_bytes - 12) * 32 / 255 - 23;
        let fitting = least + (length - least) % (self.usable_bytes - 4);
        if fitting <= most { fitting } else { least }
    }
}

fn word(bytes: &[u8], place: usize) -> Option<u16> {
    bytes.get(place..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}

fn double_word(bytes: &[u8], place: usize) -> Option<u32> {
    bytes.get(place..)?.first_chunk().map(|four| u32::from_be_bytes(*four))
}
