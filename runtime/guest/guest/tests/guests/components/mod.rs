pub(super) mod built;
pub(super) mod wat;
