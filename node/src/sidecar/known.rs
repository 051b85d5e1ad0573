//! The directory as the search for sidecars and the calls share it. A call learns from it that every
//! instance is gone that may have taken the call.

use std::{
    future::pending,
    sync::{Mutex, MutexGuard},
};

use planck_common::SidecarId;
use tokio::sync::watch;

use super::{directory::Directory, lock};

pub struct KnownSidecars {
    directory: Mutex<Directory>,
    /// Whether the first search has ended. The value is sent again after each search.
    looked: watch::Sender<bool>,
}

impl KnownSidecars {
    pub fn new(directory: Directory) -> Self {
        Self {
            directory: Mutex::new(directory),
            looked: watch::Sender::new(false),
        }
    }

    pub fn directory(&self) -> MutexGuard<'_, Directory> {
        lock(&self.directory)
    }

    /// Records that a search has ended.
    pub fn has_looked(&self) {
        self.looked.send_replace(true);
    }

    /// Waits until the first search has ended.
    pub async fn looked(&self) {
        let mut looked = self.looked.subscribe();
        let _ended = looked.wait_for(|looked| *looked).await;
    }

    /// Watches the instances that may take a call that is sent now. Returns `None` if no instance is
    /// known: then the directory says nothing about the instance that takes the call.
    pub fn watch<'a>(&'a self, sidecar: &'a SidecarId) -> Option<TakerWatch<'a>> {
        let directory = self.directory();
        directory.knows(sidecar).then(|| TakerWatch {
            known: self,
            sidecar,
            looked: self.looked.subscribe(),
            sent: directory.searches(),
            heard: directory.searches(),
        })
    }
}

/// Watches the instances that may have taken a call. The instances share the calls of their queue
/// group, so a node does not know which of them took one.
pub struct TakerWatch<'a> {
    known: &'a KnownSidecars,
    sidecar: &'a SidecarId,
    looked: watch::Receiver<bool>,
    /// The number of searches that had ended when the call was sent.
    sent: u32,
    /// The number of searches that had ended at the call's last sign of life.
    heard: u32,
}

impl TakerWatch<'_> {
    /// Records a sign of life from the instance that runs the call.
    pub fn hear(&mut self) {
        self.heard = self.known.directory().searches();
    }

    /// Waits until no instance is left that may have taken the call.
    pub async fn gone(&mut self) {
        while self.looked.changed().await.is_ok() {
            let directory = self.known.directory();
            if directory.is_lost(self.sidecar, self.sent, self.heard) {
                return;
            }
        }
        pending().await
    }
}
