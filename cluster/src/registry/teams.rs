//! Teams and their members. A team's record is written only when it is created, when its lead moves
//! and when it ends, so that its revision fences the creation of members.

use planck_common::{
    AgentId, NodeId, TeamId,
    event::json,
    registry::{Key, Keys, MemberRecord, Nonce, TeamEnd, TeamRecord, TeamStanding},
};

use super::{ClusterRegistry, FINAL, REMOVED, RegistryError, StoredRecord, TRIES, readable};
use planck_bus::records::{Condition, RecordsError, Write};

/// The outcome of a write to a team's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TeamWritten {
    /// The record was written, at this revision.
    Mine(u64),
    /// There is another record.
    Theirs(StoredRecord<TeamRecord>),
}

/// Which record of a team is to be marked dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeathOf {
    /// Any record. If there is none, a dead one is created.
    AnyRecord,
    /// The record at this revision. `None` requires that there is no record. A team that has
    /// changed since is not marked dead.
    RecordAt(Option<u64>),
}

/// What must be done to mark a team dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TeamDeathStep {
    /// Nothing, because the team is dead already.
    IsDead,
    /// A write on condition that the record is at `expects`, or, if `expects` is `None`, that there
    /// is no record.
    Write { expects: Option<u64> },
    /// The team has changed and is not to be marked dead.
    Changed,
}

impl DeathOf {
    /// Returns what must be done, given the record that was found.
    pub(crate) fn step(self, found: Option<(u64, TeamStanding)>) -> TeamDeathStep {
        let revision = found.map(|(revision, _)| revision);
        match (self, found) {
            (_, Some((_, TeamStanding::Dead))) => TeamDeathStep::IsDead,
            (Self::RecordAt(expects), _) if expects != revision => TeamDeathStep::Changed,
            (Self::AnyRecord | Self::RecordAt(_), _) => TeamDeathStep::Write { expects: revision },
        }
    }
}

/// The outcome of the creation of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembersCreated {
    /// All of them were created.
    Created,
    /// None of them was created. The team is dead, or has no record if the value is `None`.
    NoTeam(Option<TeamRecord>),
}

impl ClusterRegistry {
    /// Reads the record of an incarnation of a team.
    pub async fn team(
        &self,
        team: &TeamId,
        incarnation: i64,
    ) -> Result<Option<StoredRecord<TeamRecord>>, RegistryError> {
        self.find(&Key::Team(team.clone(), incarnation)).await
    }

    /// Reads the records of all teams.
    pub async fn teams(
        &self,
    ) -> Result<Vec<(TeamId, i64, StoredRecord<TeamRecord>)>, RegistryError> {
        let found = self.find_all(&Keys::Teams).await?.into_iter();
        let of_team = |(key, found)| match key {
            Key::Team(team, incarnation) => Some((team, incarnation, found)),
            Key::Store | Key::Node(_) | Key::Proof(_) | Key::Member(..) => None,
        };
        Ok(found.filter_map(of_team).collect())
    }

    /// Creates a team's record, dead or alive, unless a record exists. Repeating the call with the
    /// same nonce is harmless.
    pub async fn create_team(
        &self,
        team: &TeamId,
        incarnation: i64,
        record: &TeamRecord,
    ) -> Result<TeamWritten, RegistryError> {
        self.write_team(team, incarnation, record, None).await
    }

    /// Rewrites the record of a living team whose orchestrator has moved, on condition that the
    /// record is at `expects`.
    pub async fn hand_over(
        &self,
        team: &TeamId,
        incarnation: i64,
        record: &TeamRecord,
        expects: u64,
    ) -> Result<TeamWritten, RegistryError> {
        self.write_team(team, incarnation, record, Some(expects))
            .await
    }

    /// Marks a team dead. The first recorded reason stays. If there is no record, `otherwise` is
    /// written as dead. Returns [`TeamWritten::Theirs`] if the record was dead before, or is not the
    /// one that may be marked dead. Fails if `which` requires a record and there is none, or if the
    /// record changes again and again.
    pub async fn end_team(
        &self,
        team: &TeamId,
        incarnation: i64,
        (which, reason): (DeathOf, TeamEnd),
        otherwise: &TeamRecord,
    ) -> Result<TeamWritten, RegistryError> {
        for _ in 0..TRIES {
            let found = self.team(team, incarnation).await?;
            let stands = found
                .as_ref()
                .map(|found| (found.revision, found.record.state));
            let TeamDeathStep::Write { expects } = which.step(stands) else {
                return found
                    .map(TeamWritten::Theirs)
                    .ok_or_else(|| RecordsError::Refused.into());
            };
            let record = found.map_or_else(|| otherwise.clone(), |found| found.record);
            let dead = TeamRecord {
                state: TeamStanding::Dead,
                reason: Some(reason),
                nonce: otherwise.nonce.clone(),
                ..record
            };
            let written = self.write_team(team, incarnation, &dead, expects).await?;
            let moved = matches!(&written, TeamWritten::Theirs(found) if found.record.state == TeamStanding::Alive);
            if !moved {
                return Ok(written);
            }
        }
        Err(RecordsError::Refused.into())
    }

    async fn write_team(
        &self,
        team: &TeamId,
        incarnation: i64,
        record: &TeamRecord,
        expects: Option<u64>,
    ) -> Result<TeamWritten, RegistryError> {
        let key = Key::Team(team.clone(), incarnation);
        let lasts = (record.state == TeamStanding::Dead).then_some(FINAL);
        match self.put(&key, record, expects, lasts).await {
            Ok(revision) => Ok(TeamWritten::Mine(revision)),
            Err(
                error @ RegistryError::Records(RecordsError::Refused | RecordsError::Unknown(_)),
            ) => self.settle(team, incarnation, &record.nonce, error).await,
            Err(error) => Err(error),
        }
    }

    /// Reads the record after a write was refused or not answered. The nonce in the record shows
    /// which writer succeeded.
    async fn settle(
        &self,
        team: &TeamId,
        incarnation: i64,
        mine: &Nonce,
        error: RegistryError,
    ) -> Result<TeamWritten, RegistryError> {
        match self.team(team, incarnation).await? {
            Some(found) if found.record.nonce == *mine => Ok(TeamWritten::Mine(found.revision)),
            Some(found) if error.is_refused() => Ok(TeamWritten::Theirs(found)),
            Some(_) | None => Err(error),
        }
    }

    /// Reads the records of the members of an incarnation.
    pub async fn members(
        &self,
        team: &TeamId,
        incarnation: i64,
    ) -> Result<Vec<(AgentId, StoredRecord<MemberRecord>)>, RegistryError> {
        let found = self
            .find_all(&Keys::MembersOf(team, incarnation))
            .await?
            .into_iter();
        let of_member = |(key, found)| match key {
            Key::Member(_, _, agent) => Some((agent, found)),
            Key::Store | Key::Node(_) | Key::Proof(_) | Key::Team(..) => None,
        };
        Ok(found.filter_map(of_member).collect())
    }

    /// Writes the records of all these members, or of none, on condition that their team is alive.
    /// Repeating the call is harmless.
    pub async fn create_members(
        &self,
        team: &TeamId,
        incarnation: i64,
        members: &[(AgentId, MemberRecord)],
    ) -> Result<MembersCreated, RegistryError> {
        let of_team = Key::Team(team.clone(), incarnation).to_string();
        let record = |(agent, record): &(AgentId, MemberRecord)| {
            Write::put(
                Key::Member(team.clone(), incarnation, agent.clone()).to_string(),
                json(record),
            )
        };
        let mut outcome = RegistryError::Records(RecordsError::Refused);
        for _ in 0..TRIES {
            let alive = match self.team(team, incarnation).await? {
                Some(found) if found.record.state == TeamStanding::Alive => found.revision,
                found => return Ok(MembersCreated::NoTeam(found.map(|found| found.record))),
            };
            // The batch is atomic, so the condition on its first write applies to all of them.
            let mut writes: Vec<Write> = members.iter().map(record).collect();
            let Some(first) = writes.first_mut() else {
                return Ok(MembersCreated::Created);
            };
            first.only_if = Some(Condition {
                key: of_team.clone(),
                revision: alive,
            });
            match self.0.write(writes).await {
                Ok(_) => return Ok(MembersCreated::Created),
                Err(error @ (RecordsError::Refused | RecordsError::Unknown(_))) => {
                    outcome = error.into()
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(outcome)
    }

    /// Removes a member's record if it still names `node`.
    pub async fn remove_member(
        &self,
        team: &TeamId,
        incarnation: i64,
        agent: &AgentId,
        node: &NodeId,
    ) -> Result<(), RegistryError> {
        let key = Key::Member(team.clone(), incarnation, agent.clone());
        let record = self.0.read(&key.to_string()).await?;
        let revision = record.revision;
        let is_absent = record.value.is_none();
        // A record that cannot be read is removed as well.
        let is_anothers =
            readable::<MemberRecord>(record).is_some_and(|found| found.record.node != *node);
        if is_absent || is_anothers {
            return Ok(());
        }
        match self
            .0
            .write(vec![
                Write::remove(key.to_string()).at(revision).lasting(REMOVED),
            ])
            .await
        {
            Ok(_) | Err(RecordsError::Refused) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
