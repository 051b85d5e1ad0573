//! Teams and their members. A team's record is written at birth, hand-over and death only, so its
//! revision fences its members.

use planck_common::{
    AgentId, NodeId, TeamId,
    event::json,
    registry::{Key, Keys, MemberRecord, Nonce, TeamEnd, TeamRecord, TeamStanding},
};

use super::{FINAL, Found, REMOVED, Registry, RegistryError, TRIES, readable};
use crate::bus::records::{Condition, RecordsError, Write};

/// What a write came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// It stands, at this revision.
    Mine(u64),
    /// Another one stands there.
    Theirs(Found<TeamRecord>),
}

/// What the birth of members came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Birth {
    /// All of them.
    Born,
    /// Into this team nobody is born any more; `None`: there is no such team.
    NoTeam(Option<TeamRecord>),
}

impl Registry {
    pub async fn team(
        &self,
        team: &TeamId,
        incarnation: i64,
    ) -> Result<Option<Found<TeamRecord>>, RegistryError> {
        self.find(&Key::Team(team.clone(), incarnation)).await
    }

    pub async fn teams(&self) -> Result<Vec<(TeamId, i64, Found<TeamRecord>)>, RegistryError> {
        let found = self.find_all(&Keys::Teams).await?.into_iter();
        let of_team = |(key, found)| match key {
            Key::Team(team, incarnation) => Some((team, incarnation, found)),
            Key::Store | Key::Node(_) | Key::Proof(_) | Key::Member(..) => None,
        };
        Ok(found.filter_map(of_team).collect())
    }

    /// Creates a team's record, dead or alive; also where it was lost. The same again, with its
    /// nonce, is the same.
    pub async fn bear_team(
        &self,
        team: &TeamId,
        incarnation: i64,
        record: &TeamRecord,
    ) -> Result<Settled, RegistryError> {
        self.write_team(team, incarnation, record, None).await
    }

    /// Rewrites the record of a living team: its orchestrator moves.
    pub async fn hand_over(
        &self,
        team: &TeamId,
        incarnation: i64,
        record: &TeamRecord,
        expects: u64,
    ) -> Result<Settled, RegistryError> {
        self.write_team(team, incarnation, record, Some(expects))
            .await
    }

    /// Sets a team dead, whatever revision it is at; `otherwise` is written dead where there is no
    /// record. Whoever set it dead first said why.
    pub async fn end_team(
        &self,
        team: &TeamId,
        incarnation: i64,
        reason: TeamEnd,
        otherwise: &TeamRecord,
    ) -> Result<Settled, RegistryError> {
        for _ in 0..TRIES {
            let found = self.team(team, incarnation).await?;
            let expects = found.as_ref().map(|found| found.revision);
            let record = match found {
                Some(found) if found.record.state == TeamStanding::Dead => {
                    return Ok(Settled::Theirs(found));
                }
                Some(found) => found.record,
                None => otherwise.clone(),
            };
            let dead = TeamRecord {
                state: TeamStanding::Dead,
                reason: Some(reason),
                nonce: otherwise.nonce.clone(),
                ..record
            };
            let settled = self.write_team(team, incarnation, &dead, expects).await?;
            let moved = matches!(&settled, Settled::Theirs(found) if found.record.state == TeamStanding::Alive);
            if !moved {
                return Ok(settled);
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
    ) -> Result<Settled, RegistryError> {
        let key = Key::Team(team.clone(), incarnation);
        let lasts = (record.state == TeamStanding::Dead).then_some(FINAL);
        match self.put(&key, record, expects, lasts).await {
            Ok(revision) => Ok(Settled::Mine(revision)),
            Err(
                error @ RegistryError::Records(RecordsError::Refused | RecordsError::Unknown(_)),
            ) => self.settle(team, incarnation, &record.nonce, error).await,
            Err(error) => Err(error),
        }
    }

    /// Who won, of a write that was refused or not answered: the one whose nonce stands there.
    async fn settle(
        &self,
        team: &TeamId,
        incarnation: i64,
        mine: &Nonce,
        error: RegistryError,
    ) -> Result<Settled, RegistryError> {
        match self.team(team, incarnation).await? {
            Some(found) if found.record.nonce == *mine => Ok(Settled::Mine(found.revision)),
            Some(found) if error.is_refused() => Ok(Settled::Theirs(found)),
            Some(_) | None => Err(error),
        }
    }

    pub async fn members(
        &self,
        team: &TeamId,
        incarnation: i64,
    ) -> Result<Vec<(AgentId, Found<MemberRecord>)>, RegistryError> {
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

    /// Writes the records of members while their team is alive, whoever leads it now: of all or of
    /// none. The same again is the same.
    pub async fn bear_members(
        &self,
        team: &TeamId,
        incarnation: i64,
        members: &[(AgentId, MemberRecord)],
    ) -> Result<Birth, RegistryError> {
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
                found => return Ok(Birth::NoTeam(found.map(|found| found.record))),
            };
            // The first one's condition is that of all: they are written together.
            let mut writes: Vec<Write> = members.iter().map(record).collect();
            let Some(first) = writes.first_mut() else {
                return Ok(Birth::Born);
            };
            first.only_if = Some(Condition {
                key: of_team.clone(),
                revision: alive,
            });
            match self.0.write(writes).await {
                Ok(_) => return Ok(Birth::Born),
                Err(error @ (RecordsError::Refused | RecordsError::Unknown(_))) => {
                    outcome = error.into()
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(outcome)
    }

    /// Removes a member's record if it is this node's still.
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
        // One that cannot be read is nobody's, and goes too.
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
