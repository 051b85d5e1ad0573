//! A simulated cluster of whole nodes in one thread. The nodes run the code that ships: membership,
//! the services, the gateway and the actors. Simulated are the store, the registry, the bus, the
//! models, the tools, the clock and the faults. Time is virtual, and a seed decides the delays and
//! the faults.

mod bus;
mod checks;
mod faults;
mod node;
mod people;
mod play;
mod registry;
mod seeds;
mod store;
mod work;
mod world;
