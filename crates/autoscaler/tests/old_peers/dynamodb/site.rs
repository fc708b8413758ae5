//! A world whose state item is in a DynamoDB emulator: ours reaches it by our store, old writers by the SDK alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Region;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue as Attribute, BillingMode, KeySchemaElement, KeyType,
    ScalarAttributeType,
};
use serde_json::Value as Json;
use tenure_autoscaler::state::State;
use tenure_autoscaler::testing::{Gate, World};
use tenure_autoscaler::{Executor, Places, Tick};
use tenure_backend::aws;
use tenure_clock::Entropy;
use tenure_store::{Address, DynamoDb};

use super::peer::{Peer, list, number, text};

/// DynamoDB Local keeps the tables of each region apart, so all must name one.
const REGION: &str = "eu-west-1";

#[derive(Debug)]
pub(super) struct Site {
    pub(super) world: World,
    client: Client,
    table: String,
    store: Arc<DynamoDb>,
}

impl Site {
    pub(super) async fn on(variable: &str, world: World) -> Self {
        let how = "run `cargo xtask services up` and `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`";
        let endpoint = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {how}"));
        // Without them the SDK would look for a machine's role, slowly.
        assert!(std::env::var_os("AWS_ACCESS_KEY_ID").is_some(), "AWS_ACCESS_KEY_ID is not set: {how}");
        let shared = aws::loader().region(Region::new(REGION)).endpoint_url(&endpoint).load().await;
        let client = Client::new(&shared);
        let table = format!("autoscaler-{}", &Entropy::system().nonce()[..16]);
        let key = KeySchemaElement::builder().attribute_name("pk").key_type(KeyType::Hash).build().unwrap();
        let named = AttributeDefinition::builder()
            .attribute_name("pk")
            .attribute_type(ScalarAttributeType::S)
            .build();
        let created = client
            .create_table()
            .table_name(&table)
            .key_schema(key)
            .attribute_definitions(named.unwrap())
            .billing_mode(BillingMode::PayPerRequest);
        created.send().await.expect("the emulator makes a table");
        let mut address = Address::parse(&format!("dynamodb:?region={REGION}&endpoint={endpoint}")).unwrap();
        // By the world's clock: it stands still while a call is under way, so none times out.
        let store = Arc::new(DynamoDb::from_address(&mut address, &world.env()).await.unwrap());
        Self { world, client, table, store }
    }

    /// The table goes with it; one that a failed test leaves goes with the emulator.
    pub(super) async fn close(self) {
        self.client.delete_table().table_name(&self.table).send().await.expect("the table goes");
    }

    pub(super) fn peer(&self, request: &str) -> Peer {
        Peer::new(&self.client, &self.table, request)
    }

    pub(super) fn executor(&self, name: &str) -> Executor {
        let mut ports = self.world.ports(&Gate::open());
        ports.store = self.store.clone();
        let places = Places { state_table: self.table.clone(), logs_table: None, ..Places::default() };
        let builder = Executor::builder(ports, self.world.policy(), self.world.env());
        builder.name(name).places(places).build().unwrap()
    }

    /// One tick that long after the last thing, and the titles of its writes.
    pub(super) async fn tick_after(&self, seconds: u64, executor: &mut Executor) -> (String, Tick) {
        self.world.advance(Duration::from_secs(seconds));
        let tick = executor.tick().await.unwrap();
        let titles: Vec<_> = tick.writes.iter().map(|name| name.row().title).collect();
        (titles.join(", "), tick)
    }

    /// Another executor, once a minute, until nothing is under way.
    pub(super) async fn until_idle(&self) -> State {
        let mut executor = self.executor("last");
        for _ in 0..60 {
            let (_, tick) = self.tick_after(60, &mut executor).await;
            if tick.state.action().is_none() {
                return tick.state;
            }
        }
        panic!("still under way: {:?}", self.item().await);
    }

    /// The item as it is in the table.
    pub(super) async fn item(&self) -> HashMap<String, Attribute> {
        let request = self.client.get_item().table_name(&self.table).key("pk", text("cluster"));
        request.consistent_read(true).send().await.expect("a read").item.unwrap_or_default()
    }

    /// Puts an item, given as in the old documents.
    pub(super) async fn put(&self, json: &str) -> HashMap<String, Attribute> {
        let Json::Object(all) = serde_json::from_str(json).unwrap() else { panic!("{json}") };
        let item: HashMap<_, _> = all.iter().map(|(name, value)| (name.clone(), attribute(value))).collect();
        let request = self.client.put_item().table_name(&self.table).set_item(Some(item.clone()));
        request.send().await.expect("a put");
        item
    }
}

/// As the old documents type them: lists are lists of texts.
fn attribute(json: &Json) -> Attribute {
    match json {
        Json::Bool(flag) => Attribute::Bool(*flag),
        Json::Number(value) => number(value.as_i64().unwrap()),
        Json::String(value) => text(value),
        Json::Array(all) => list(&all.iter().map(|item| item.as_str().unwrap()).collect::<Vec<_>>()),
        other => panic!("no example has {other}"),
    }
}
