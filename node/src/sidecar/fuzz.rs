//! A fuzz target for the messages of sidecars: their descriptions, and their answers to calls.

use std::time::Duration;

use bytes::Bytes;
use planck_common::{CallId, SidecarId, subject::Prefix};

use super::{
    call::{CallTarget, SidecarCall},
    discovery::{DefaultTimeouts, SidecarInstance},
};
use crate::bus::StreamedReply;

/// Parses the bytes as a sidecar's description and as its answer to a call.
pub fn message(bytes: &[u8]) {
    let _description = SidecarInstance::read(bytes, &Prefix::default(), DefaultTimeouts::default());
    let (Ok(sidecar), Ok(call_id)) = (SidecarId::parse("fuzz"), CallId::parse("c-1")) else {
        return;
    };
    for target in [CallTarget::Sidecar(sidecar), CallTarget::Plain] {
        let call = SidecarCall {
            name: "tool",
            subject: "tool.fuzz.tool",
            target: &target,
            call_id: &call_id,
            body: Bytes::new(),
            idle: Duration::ZERO,
            longest: Duration::ZERO,
            may_run_again: false,
            is_repeat: false,
        };
        call.reads(StreamedReply {
            payload: Bytes::copy_from_slice(bytes),
            error: None,
        });
    }
}
