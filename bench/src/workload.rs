//! The workloads: their numbers of agents, sessions and turns, and the model's answers.

use clap::{Args, ValueEnum};
use planck_scripted_model::{Pace, Reply, Script, ScriptedCall, ScriptedPart, When};
use serde_json::json;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// A process from its start to its end, with two tiny turns
    Start,
    /// One reply of 2,000 deltas as fast as they come
    Burst,
    /// 100 agents of one session, 250 deltas each at 50 a second
    Stream,
    /// The same agents, each in a session of its own
    StreamSessions,
    /// 50 rounds with one tool call each
    Rounds,
    /// Ten such turns in one session, which has 1,020 messages at its end
    Long,
    /// 20 rounds with eight tool calls each
    Wide,
    /// 200 agents of one session at once: two rounds with two calls, then 50 deltas
    Crowd,
    /// The same agents, each in a session of its own
    CrowdSessions,
    /// The end of a team of 100 agents that have had a turn
    Stop,
    /// 1,000 agents with 20 messages each that have nothing to do, at once and a minute later
    Idle,
    /// Agents that were never prompted
    Fresh,
}

/// The numbers of agents and sessions of a workload.
#[derive(Debug, Clone, Copy, Args)]
pub struct WorkloadSize {
    #[arg(long)]
    pub agents: usize,
    #[arg(long)]
    pub sessions: usize,
}

/// One answer of the model: its tool calls and its text.
#[derive(Debug, Clone, Copy)]
pub struct ModelAnswer {
    pub calls: usize,
    /// The number of deltas of the text. Each has five characters.
    pub deltas: usize,
}

const DELTA: &str = "word ";

impl Workload {
    pub const USUAL: [Self; 11] = [
        Self::Start,
        Self::Burst,
        Self::Stream,
        Self::StreamSessions,
        Self::Rounds,
        Self::Long,
        Self::Wide,
        Self::Crowd,
        Self::CrowdSessions,
        Self::Stop,
        Self::Idle,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Burst => "burst",
            Self::Stream => "stream",
            Self::StreamSessions => "stream-sessions",
            Self::Rounds => "rounds",
            Self::Long => "long",
            Self::Wide => "wide",
            Self::Crowd => "crowd",
            Self::CrowdSessions => "crowd-sessions",
            Self::Stop => "stop",
            Self::Idle => "idle",
            Self::Fresh => "fresh",
        }
    }

    pub fn size(self, agents: Option<usize>, sessions: Option<usize>) -> WorkloadSize {
        let usual = match self {
            Self::Start | Self::Burst | Self::Rounds | Self::Long | Self::Wide => 1,
            Self::Stream | Self::StreamSessions | Self::Stop => 100,
            Self::Crowd | Self::CrowdSessions => 200,
            Self::Idle => 1_000,
            Self::Fresh => 10_000,
        };
        let agents = agents.unwrap_or(usual).max(1);
        let together = match self {
            Self::StreamSessions | Self::CrowdSessions => 1,
            Self::Start
            | Self::Burst
            | Self::Stream
            | Self::Rounds
            | Self::Long
            | Self::Wide
            | Self::Crowd
            | Self::Stop
            | Self::Idle
            | Self::Fresh => 1_000,
        };
        WorkloadSize {
            agents,
            sessions: sessions
                .unwrap_or(agents.div_ceil(together))
                .clamp(1, agents),
        }
    }

    /// Returns whether the workload is repeated in one process, first to warm it up and then for
    /// [`LEAST`](super::measure::LEAST). The other workloads take seconds or measure a process.
    pub fn is_short(self) -> bool {
        match self {
            Self::Burst
            | Self::Rounds
            | Self::Wide
            | Self::Crowd
            | Self::CrowdSessions
            | Self::Stop => true,
            Self::Start
            | Self::Stream
            | Self::StreamSessions
            | Self::Long
            | Self::Idle
            | Self::Fresh => false,
        }
    }

    /// Returns the model's answers in one turn, in order.
    pub fn answers(self) -> Vec<ModelAnswer> {
        let rounds = |count, calls, deltas| {
            let round = ModelAnswer { calls, deltas: 0 };
            let mut answers = vec![round; count];
            answers.push(ModelAnswer { calls: 0, deltas });
            answers
        };
        match self {
            Self::Start | Self::Stop => rounds(0, 0, 1),
            Self::Burst => rounds(0, 0, 2_000),
            Self::Stream | Self::StreamSessions => rounds(0, 0, 250),
            Self::Rounds | Self::Long => rounds(50, 1, 1),
            Self::Wide => rounds(20, 8, 1),
            Self::Crowd | Self::CrowdSessions => rounds(2, 2, 50),
            Self::Idle => rounds(9, 1, 1),
            Self::Fresh => Vec::new(),
        }
    }

    /// Returns how many times each agent is prompted.
    pub fn turns(self) -> usize {
        match self {
            Self::Start => 2,
            Self::Long => 10,
            Self::Burst
            | Self::Stream
            | Self::StreamSessions
            | Self::Rounds
            | Self::Wide
            | Self::Crowd
            | Self::CrowdSessions
            | Self::Stop
            | Self::Idle => 1,
            Self::Fresh => 0,
        }
    }

    pub fn deltas(self) -> usize {
        self.turns()
            * self
                .answers()
                .iter()
                .map(|answer| answer.deltas)
                .sum::<usize>()
    }

    pub fn tools(self) -> usize {
        self.turns()
            * self
                .answers()
                .iter()
                .map(|answer| answer.calls)
                .sum::<usize>()
    }

    /// Returns whether the workload measures the memory of idle agents.
    pub fn is_idle(self) -> bool {
        matches!(self, Self::Idle | Self::Fresh)
    }

    /// Returns whether the bare loop can do the work of this workload.
    pub fn has_bare(self) -> bool {
        !self.is_idle() && self != Self::Stop
    }

    pub fn script(self) -> Script {
        let is_paced = matches!(self, Self::Stream | Self::StreamSessions);
        let rate = if is_paced { 50.0 } else { 0.0 };
        let pace = Pace::per_second(rate)
            .chunk(DELTA.len())
            .staggered()
            .block(1);
        let replies = self
            .answers()
            .into_iter()
            .enumerate()
            .map(|(round, answer)| reply(round, answer));
        Script::new()
            .without_auth()
            .keep(0)
            .pace(pace)
            .rounds(When::any(), replies.chain([Reply::text("Ok.")]))
    }
}

fn reply(round: usize, answer: ModelAnswer) -> Reply {
    let reply = if answer.deltas == 0 {
        Reply::new()
    } else {
        Reply::text(DELTA.repeat(answer.deltas))
    };
    (0..answer.calls).fold(reply, |reply, at| {
        reply.part(ScriptedPart::Call(call(round, at)))
    })
}

/// Returns the `at`-th tool call of the `round`-th answer. No two calls of a turn are equal,
/// because the loop guard would stop a turn that repeats a call.
pub fn call(round: usize, at: usize) -> ScriptedCall {
    let args = json!({ "path": FILE, "offset": round * 8 + at, "limit": 1 });
    ScriptedCall::new("read", args).id(&format!("call_{round}_{at}"))
}

/// The name of the file that the tool calls read.
pub const FILE: &str = "lines.txt";

/// Returns the content of the file [`FILE`].
pub fn lines() -> String {
    (0..512).map(|number| format!("line {number}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_matches_its_description() {
        let table = [
            (Workload::Start, 1, 2, 2, 0),
            (Workload::Burst, 1, 1, 2_000, 0),
            (Workload::Stream, 100, 1, 250, 0),
            (Workload::StreamSessions, 100, 1, 250, 0),
            (Workload::Rounds, 1, 1, 1, 50),
            (Workload::Long, 1, 10, 10, 500),
            (Workload::Wide, 1, 1, 1, 160),
            (Workload::Crowd, 200, 1, 50, 4),
            (Workload::CrowdSessions, 200, 1, 50, 4),
            (Workload::Stop, 100, 1, 1, 0),
            (Workload::Idle, 1_000, 1, 1, 9),
            (Workload::Fresh, 10_000, 0, 0, 0),
        ];
        for (workload, agents, turns, deltas, tools) in table {
            let size = workload.size(None, None);
            assert_eq!(
                (
                    size.agents,
                    workload.turns(),
                    workload.deltas(),
                    workload.tools()
                ),
                (agents, turns, deltas, tools)
            );
        }
    }

    #[test]
    fn agents_of_a_sessions_workload_have_a_session_each() {
        assert_eq!(Workload::StreamSessions.size(None, None).sessions, 100);
        assert_eq!(Workload::CrowdSessions.size(Some(7), None).sessions, 7);
    }

    #[test]
    fn a_thousand_agents_share_a_session_by_default() {
        let sessions = |agents, sessions| Workload::Fresh.size(agents, sessions).sessions;
        assert_eq!(
            (
                sessions(None, None),
                sessions(Some(5), None),
                sessions(Some(5), Some(9))
            ),
            (10, 1, 5)
        );
    }
}
