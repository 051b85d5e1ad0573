//! The network: which machines are connected to NATS and to SQL, on which side of a split they are,
//! and whether JetStream can write.

/// The links of one machine.
#[derive(Debug, Clone, Default)]
pub struct MachineLinks {
    pub is_cut: bool,
    /// When the machine's NATS client is connected again after a cut or an outage, in milliseconds.
    pub back_at: u64,
    /// The longest additional delay of each message of the machine, in milliseconds.
    pub slow: u64,
    pub is_sql_cut: bool,
}

#[derive(Debug)]
pub struct Net {
    pub links: Vec<MachineLinks>,
    pub is_up: bool,
    /// Whether JetStream has a leader.
    pub is_writable: bool,
    pub is_sql_up: bool,
    /// The only machine that has SQL, if the others lost it.
    pub sql_only_at: Option<usize>,
    /// The machines that reach each other, but neither the others nor the JetStream leader.
    pub island: Vec<usize>,
    /// The longest delay of a watch, in milliseconds.
    pub watch_lag: u64,
}

impl Net {
    pub fn new(machines: usize) -> Self {
        Self {
            links: vec![MachineLinks::default(); machines],
            is_up: true,
            is_writable: true,
            is_sql_up: true,
            sql_only_at: None,
            island: Vec::new(),
            watch_lag: 5,
        }
    }

    fn link(&self, machine: usize) -> &MachineLinks {
        &self.links[machine]
    }

    pub fn is_connected(&self, machine: usize, now: u64) -> bool {
        self.is_up && !self.link(machine).is_cut && now >= self.link(machine).back_at
    }

    /// Returns whether a message from one machine reaches another.
    pub fn reaches(&self, from: usize, to: usize, now: u64) -> bool {
        let together = self.island.contains(&from) == self.island.contains(&to);
        together && self.is_connected(from, now) && self.is_connected(to, now)
    }

    pub fn can_write(&self, machine: usize, now: u64) -> bool {
        self.is_writable && self.is_connected(machine, now) && !self.island.contains(&machine)
    }

    pub fn has_sql(&self, machine: usize) -> bool {
        let is_elsewhere = self.sql_only_at.is_some_and(|only| only != machine);
        self.is_sql_up && !is_elsewhere && !self.link(machine).is_sql_cut
    }

    pub fn slow(&self, machine: usize) -> u64 {
        self.link(machine).slow
    }
}
