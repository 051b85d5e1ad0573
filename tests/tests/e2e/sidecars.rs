//! Real sidecars at real nodes: those of the SDK in this process and in their own, and bare
//! services that are wrong.

mod calls;
mod coming;
mod compacting;
mod dying;
mod programs;
pub mod serving;
