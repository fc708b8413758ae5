//! `tenure cdc tail` shows what is committed, and leaves nothing behind.

use rustix::process::Signal;

use super::world::World;
use crate::site::Site;

#[test]
fn a_tail_needs_nothing_and_leaves_nothing() {
    let world = World::new();
    // Neither a store, nor a stream, nor settings.
    let elsewhere = Site::new();
    let nothing_left = || world.slots().is_empty() && world.publications().is_empty();
    let mut tail = world.start("tail", &format!("cdc tail {}", world.url));
    tail.wait_for("it has begun", |tail| tail.stderr().contains("changes from"));
    world.sql(
        "INSERT INTO public.items VALUES (1, 'a'); UPDATE public.items SET id = 2; DELETE FROM public.items",
    );
    tail.wait_for("the changes", |tail| tail.lines().len() == 4);
    let lines = tail.lines();
    for (line, part) in lines.iter().zip(["insert", "delete", "insert", "delete"]) {
        assert!(line.contains(part) && line.contains("public.items"), "{lines:?}");
    }
    assert!(lines[0].contains(r#"id=1  {"id":1,"note":"a"}"#), "{lines:?}");
    assert!(!nothing_left());
    tail.end();
    assert!(nothing_left(), "{:?} {:?}", world.slots(), world.publications());

    // Killed, its publication stays until the next one comes.
    let mut tail = world.start("killed", &format!("cdc tail {}", world.url));
    tail.wait_for("it has begun", |tail| tail.stderr().contains("changes from"));
    tail.kill();
    super::world::until("the slot is gone", || world.slots().is_empty().then_some(()));
    assert_eq!(world.publications().len(), 1);
    let mut tail =
        world.start("next", &format!("cdc tail {} --limit 1 --json --table public.items", world.url));
    super::world::until("the old publication is gone and a slot is there", || {
        (world.publications().len() == 1 && world.slots().len() == 1).then_some(())
    });
    tail.wait_for("one event", |tail| {
        world.sql("INSERT INTO public.items VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET note = 'b'");
        !tail.lines().is_empty()
    });
    assert!(tail.ended().success(), "{}", tail.stderr());
    let events = tail.json();
    assert_eq!(events.len(), 1);
    assert!(events[0]["tenure"]["id"].is_string() && events[0]["after"]["id"] == 1, "{events:?}");
    assert!(nothing_left(), "{:?} {:?}", world.slots(), world.publications());

    // Two at once do not take each other's for stale; an interrupt is as good as any signal.
    let mut both = ["one", "two"].map(|name| world.start(name, &format!("cdc tail {} --json", world.url)));
    super::world::until("two slots", || (world.slots().len() == 2).then_some(()));
    assert_eq!(world.publications().len(), 2);
    for tail in &mut both {
        tail.wait_for("an event", |tail| {
            world.sql("UPDATE public.items SET note = note || '.'");
            !tail.lines().is_empty()
        });
        tail.signal(Signal::INT);
        assert!(tail.ended().success());
    }
    assert!(nothing_left(), "{:?} {:?}", world.slots(), world.publications());

    let refused = elsewhere.run(&format!("cdc tail {} --table public.nothing", world.url)).expect(2);
    refused.says(&["public.nothing", "does not exist"]);
    let refused = elsewhere.run(&format!("cdc tail {} --publication nothing", world.url)).expect(2);
    refused.says(&["publication `nothing` does not exist"]);
    assert!(nothing_left());
}

#[test]
fn a_publication_that_is_there_is_used_and_stays() {
    let world = World::new();
    world.sql("CREATE PUBLICATION mine FOR TABLE public.items");
    let mut tail = world.start("tail", "cdc tail --publication mine --json");
    tail.wait_for("an event", |tail| {
        world.sql("INSERT INTO public.items VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET note = 'b'");
        !tail.lines().is_empty()
    });
    tail.end();
    assert_eq!((world.publications(), world.slots()), (vec!["mine".to_owned()], vec![]));
}
