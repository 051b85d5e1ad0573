use std::sync::Mutex;

use async_trait::async_trait;
use planck_common::{AgentId, NodeId, SessionId, subject::Address};
use planck_toolbox::ToolCatalogue;
use serde_json::json;

use super::*;
use crate::{
    bus::{Bus, CommandHandler, Published, ServiceGuard},
    sidecar::SidecarSettings,
};

/// A bus with so many services, one of which is the sidecar `s`. It records after how many seconds it
/// was asked for all services, and how often for the sidecar.
struct ManyServices {
    services: usize,
    began: Instant,
    all: Mutex<Vec<u64>>,
    one: Mutex<usize>,
}

fn service(name: &str, id: usize) -> Bytes {
    let service = json!({"name": name, "id": id.to_string(), "version": "1.0.0", "metadata": {"planck": "1"}});
    service.to_string().into()
}

#[async_trait]
impl Bus for ManyServices {
    fn publish(&self, _: String, _: Bytes) {}
    fn publish_event(&self, _: Published) {}
    fn turn_open(&self, _: &SessionId, _: &AgentId, _: bool) {}
    async fn request(&self, to: &Address, _: Bytes, _: Duration) -> Result<Bytes, BusError> {
        Err(BusError::NoResponders(to.to_string()))
    }
    async fn services(&self, name: Option<&str>, _: Duration) -> Result<Vec<Bytes>, BusError> {
        if name.is_some() {
            *self.one.lock().unwrap() += 1;
            return Ok(vec![service("s", 0)]);
        }
        self.all
            .lock()
            .unwrap()
            .push(self.began.elapsed().as_secs());
        let nodes = (1..self.services).map(|id| service(NODE_SERVICE, id));
        Ok(nodes.chain([service("s", 0)]).collect())
    }
    async fn subscribe(&self, _: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        Ok(pending().boxed())
    }
    async fn serve(
        &self,
        _: &NodeId,
        _: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        Err(BusError::Unfit("there is no server".into()))
    }
    fn is_connected(&self) -> bool {
        true
    }
    async fn flush(&self, _: Duration) -> Result<(), BusError> {
        Ok(())
    }
}

/// Returns the seconds of the first minute at which all services were asked, and how often the sidecar
/// was asked.
async fn asked_in_a_minute(services: usize) -> (Vec<u64>, usize) {
    let bus = Arc::new(ManyServices {
        services,
        began: Instant::now(),
        all: Mutex::default(),
        one: Mutex::default(),
    });
    let sidecars = Sidecars::new(
        bus.clone(),
        ToolCatalogue::default(),
        SidecarSettings::default(),
    );
    let minute = Duration::from_secs(59);
    let _over = tokio::time::timeout(minute, sidecars.keep_looking(|| ())).await;
    assert_eq!(sidecars.rows().len(), 1);
    let (all, one) = (bus.all.lock().unwrap().clone(), *bus.one.lock().unwrap());
    (all, one)
}

#[tokio::test(start_paused = true)]
async fn fewer_searches_ask_all_services_of_a_large_cluster() {
    assert_eq!(
        asked_in_a_minute(50).await,
        (vec![0, 10, 20, 30, 40, 50], 6)
    );
    assert_eq!(asked_in_a_minute(51).await, (vec![0, 20, 40], 6));
    assert_eq!(asked_in_a_minute(160).await, (vec![0, 40], 6));
}
