//! What was asked of an agent and is not yet in a turn, in order of acceptance.

use std::collections::VecDeque;

use planck_common::{InputId, command::Mode};

use super::Arrival;

#[derive(Debug, Default)]
pub(super) struct Inbox {
    waiting: VecDeque<Arrival>,
}

impl Inbox {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Gives back the room of what has been read.
    pub(super) fn shrink(&mut self) {
        self.waiting.shrink_to_fit();
    }

    pub(super) fn holds(&self, id: &InputId) -> bool {
        self.waiting.iter().any(|arrival| arrival.id == *id)
    }

    pub(super) fn push(&mut self, arrival: Arrival) {
        self.waiting.push_back(arrival);
    }

    pub(super) fn remove(&mut self, ids: &[InputId]) {
        self.waiting.retain(|arrival| !ids.contains(&arrival.id));
    }

    pub(super) fn drain(&mut self) -> Vec<Arrival> {
        self.waiting.drain(..).collect()
    }

    /// Those that make the next turn: all that wait, but a fresh one has a turn to itself.
    pub(super) fn take_next(&mut self) -> Vec<Arrival> {
        let fresh = self.waiting.iter().position(|arrival| arrival.fresh);
        let count = fresh.map_or(self.waiting.len(), |at| at.max(1));
        self.waiting.drain(..count).collect()
    }

    pub(super) fn steers(&self) -> bool {
        self.waiting.iter().any(joins)
    }

    /// Those that join the running turn.
    pub(super) fn take_steered(&mut self) -> Vec<Arrival> {
        let (steered, rest): (VecDeque<_>, VecDeque<_>) = self.waiting.drain(..).partition(joins);
        self.waiting = rest;
        steered.into()
    }

    /// Gives back what could not be consumed, but for those that are gone.
    pub(super) fn put_back(&mut self, taken: Vec<Arrival>, gone: &[InputId]) {
        for arrival in taken.into_iter().rev().filter(|arrival| !gone.contains(&arrival.id)) {
            self.waiting.push_front(arrival);
        }
    }
}

fn joins(arrival: &Arrival) -> bool {
    arrival.mode == Mode::Steer && !arrival.fresh
}
