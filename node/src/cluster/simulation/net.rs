//! The network as it was measured: who is connected to NATS, on which side of a split, and whether
//! JetStream can write.

#[derive(Debug, Clone, Default)]
pub struct Link {
    pub cut: bool,
    /// When its client is connected again after a cut or an outage.
    pub back_at: u64,
    /// What its every message takes longer, at most.
    pub slow: u64,
    pub sql_cut: bool,
}

#[derive(Debug)]
pub struct Net {
    pub links: Vec<Link>,
    pub up: bool,
    /// Whether JetStream has a leader.
    pub writable: bool,
    pub sql_up: bool,
    /// The machines that are cut off together, without the JetStream leader.
    pub island: Vec<usize>,
    /// How late watches are, at most.
    pub watch_lag: u64,
}

impl Net {
    pub fn new(machines: usize) -> Self {
        let links = vec![Link::default(); machines];
        Self {
            links,
            up: true,
            writable: true,
            sql_up: true,
            island: Vec::new(),
            watch_lag: 5,
        }
    }

    fn link(&self, machine: usize) -> &Link {
        &self.links[machine]
    }

    pub fn connected(&self, machine: usize, now: u64) -> bool {
        self.up && !self.link(machine).cut && now >= self.link(machine).back_at
    }

    pub fn hears(&self, from: usize, to: usize, now: u64) -> bool {
        let together = self.island.contains(&from) == self.island.contains(&to);
        together && self.connected(from, now) && self.connected(to, now)
    }

    pub fn can_write(&self, machine: usize, now: u64) -> bool {
        self.writable && self.connected(machine, now) && !self.island.contains(&machine)
    }

    pub fn has_sql(&self, machine: usize) -> bool {
        self.sql_up && !self.link(machine).sql_cut
    }

    pub fn slow(&self, machine: usize) -> u64 {
        self.link(machine).slow
    }
}
