//! The append queues of this node, one for each session with an agent in memory. A queue ends when
//! the last handle to it is dropped.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use planck_common::{NodeId, SessionId};
use planck_store::{SessionStore, queue::AppendQueue};

#[derive(Clone)]
pub struct Queues(Arc<QueuesInner>);

struct QueuesInner {
    store: Arc<dyn SessionStore>,
    node: NodeId,
    open: Mutex<HashMap<SessionId, OpenQueue>>,
}

struct OpenQueue {
    queue: AppendQueue,
    users: usize,
}

/// An agent's handle to the queue of its session. The queue ends when the last handle is dropped.
pub struct QueueHold {
    pub queue: AppendQueue,
    session: SessionId,
    queues: Queues,
}

impl Queues {
    pub fn new(store: Arc<dyn SessionStore>, node: NodeId) -> Self {
        Self(Arc::new(QueuesInner {
            store,
            node,
            open: Mutex::default(),
        }))
    }

    /// Returns a handle to the session's queue, and starts the queue if it does not run. The queue
    /// runs on the thread of the caller that starts it, so that a save of that caller leaves the
    /// thread only for the database.
    pub fn hold(&self, session: &SessionId) -> QueueHold {
        let mut open = self.open();
        let one = open.entry(session.clone()).or_insert_with(|| OpenQueue {
            queue: self.start(session),
            users: 0,
        });
        one.users += 1;
        QueueHold {
            queue: one.queue.clone(),
            session: session.clone(),
            queues: self.clone(),
        }
    }

    fn start(&self, session: &SessionId) -> AppendQueue {
        let QueuesInner { store, node, .. } = &*self.0;
        let (queue, work) = AppendQueue::new(Arc::clone(store), session.clone(), node.clone());
        tokio::spawn(work);
        queue
    }

    fn release(&self, session: &SessionId) {
        let mut open = self.open();
        if let Some(one) = open.get_mut(session) {
            one.users -= 1;
            if one.users == 0 {
                open.remove(session);
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<SessionId, OpenQueue>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QueueHold {
    fn drop(&mut self) {
        self.queues.release(&self.session);
    }
}
