//! What was asked of an agent and is not yet in a turn, in order of acceptance.

use std::collections::VecDeque;

use planck_common::{InputId, command::Mode};

use super::Arrival;

#[derive(Debug, Default)]
pub(super) struct Inbox {
    waiting: VecDeque<Arrival>,
    /// Inputs of which one may hold what cannot be stored: each has a turn to itself.
    suspects: Vec<InputId>,
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

    pub(super) fn suspect(&mut self, ids: &[InputId]) {
        self.suspects.extend_from_slice(ids);
    }

    /// Takes one out.
    pub(super) fn take(&mut self, id: &InputId) -> Option<Arrival> {
        let at = self.waiting.iter().position(|arrival| arrival.id == *id)?;
        self.waiting.remove(at)
    }

    pub(super) fn remove(&mut self, ids: &[InputId]) {
        self.waiting.retain(|arrival| !ids.contains(&arrival.id));
    }

    pub(super) fn drain(&mut self) -> Vec<Arrival> {
        self.waiting.drain(..).collect()
    }

    /// Those that make the next turn: all that wait, but a fresh one and a suspect have a turn to
    /// themselves.
    pub(super) fn take_next(&mut self) -> Vec<Arrival> {
        let suspects = std::mem::take(&mut self.suspects);
        let is_suspect = |arrival: &Arrival| suspects.contains(&arrival.id);
        let count = match self.waiting.front() {
            Some(first) if is_suspect(first) => 1,
            _ => {
                let alone = self
                    .waiting
                    .iter()
                    .position(|arrival| arrival.fresh || is_suspect(arrival));
                alone.map_or(self.waiting.len(), |at| at.max(1))
            }
        };
        let next = self.waiting.drain(..count).collect();
        self.suspects = suspects.into_iter().filter(|id| self.holds(id)).collect();
        next
    }

    pub(super) fn steers(&self) -> bool {
        self.waiting.iter().any(|arrival| self.joins(arrival))
    }

    fn joins(&self, arrival: &Arrival) -> bool {
        arrival.mode == Mode::Steer && !arrival.fresh && !self.suspects.contains(&arrival.id)
    }

    /// Those that join the running turn.
    pub(super) fn take_steered(&mut self) -> Vec<Arrival> {
        let waiting = std::mem::take(&mut self.waiting);
        let (steered, rest): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|arrival| self.joins(arrival));
        self.waiting = rest;
        steered.into()
    }

    /// Gives back what could not be consumed, but for those that are gone.
    pub(super) fn put_back(&mut self, taken: Vec<Arrival>, gone: &[InputId]) {
        for arrival in taken
            .into_iter()
            .rev()
            .filter(|arrival| !gone.contains(&arrival.id))
        {
            self.waiting.push_front(arrival);
        }
    }
}
