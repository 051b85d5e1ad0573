//! The private environment of each test: a nats-server, a database, a scripted model, node
//! processes.

pub mod attached;
pub mod browser;
pub mod bubblewrap;
pub mod caller;
pub mod editor;
pub mod eventually;
pub mod example;
pub mod front;
pub mod judges;
pub mod line_client;
pub mod machine;
pub mod nats;
pub mod node;
pub mod postgres;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod recorder;
pub mod registry;
pub mod run;
pub mod sdk;
pub mod sqlite;
pub mod stream_client;
pub mod terminal;
pub mod watch;
pub mod world;
