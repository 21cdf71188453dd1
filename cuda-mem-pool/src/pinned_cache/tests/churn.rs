//! What is held in the long run, when blocks come and go and what is alive is bounded.

use super::heap::{GIB, KIB, Machine, Numbers};

const MIB: usize = 1 << 20;

/// Figures over the most bytes that were ever alive at once.
#[derive(Debug)]
struct Figures {
    /// The most that was ever held.
    held: f64,
    /// All that was ever pinned.
    pinned: f64,
    /// What is held by who gives each block a power of two, and keeps it for blocks of the same one.
    powers_of_two: f64,
}

fn churn(most: usize, steps: usize, mut size: impl FnMut(&mut Numbers) -> usize) -> Figures {
    let numbers = &mut Numbers(most as u64);
    let mut machine = Machine::new();
    let (mut alive, mut most_alive, mut most_held) = (0, 0, 0);
    let power = |size: usize| size.next_power_of_two().ilog2() as usize;
    let mut powers = [(0usize, 0usize); 64];
    for _ in 0..steps {
        let len = size(numbers);
        while alive + len > most {
            let index = numbers.between(0, machine.blocks.len());
            let size = machine.blocks[index].size;
            alive -= size;
            powers[power(size)].0 -= 1;
            machine.free(index);
        }
        let size = machine.allocate(len);
        alive += size;
        let (now, peak) = &mut powers[power(size)];
        *now += 1;
        *peak = (*peak).max(*now);
        (most_alive, most_held) = (most_alive.max(alive), most_held.max(machine.held));
    }
    let over_alive = |bytes: usize| bytes as f64 / most_alive as f64;
    let powers_of_two = powers.iter().enumerate().map(|(power, &(_, peak))| peak << power).sum();
    Figures {
        held: over_alive(most_held),
        pinned: over_alive(machine.pinned),
        powers_of_two: over_alive(powers_of_two),
    }
}

fn expect(figures: &Figures, held: f64, pinned: f64) {
    assert!(figures.held <= held && figures.pinned <= pinned, "{figures:?}");
    assert!(figures.held < figures.powers_of_two, "{figures:?}");
}

#[test]
fn sizes_that_never_come_again_do_not_pile_up() {
    expect(&churn(GIB, 100_000, |numbers| numbers.log_between(KIB, MIB)), 1.15, 1.15);
    expect(&churn(4 * GIB, 50_000, |numbers| numbers.log_between(MIB, 64 * MIB)), 1.4, 10.0);
    // Blocks of up to a twelfth of all that is alive leave gaps that no other fits.
    expect(&churn(24 * GIB, 20_000, |numbers| numbers.between(KIB, 2 * GIB)), 1.8, 20.0);
    expect(&churn(24 * GIB, 20_000, |numbers| numbers.log_between(KIB, 2 * GIB)), 1.8, 10.0);
}

/// As of a program that does the same all the time.
#[test]
fn sizes_that_come_again_are_pinned_at_the_start() {
    let sizes: Vec<usize> = (0..16).map(|step| ((3 * MIB) << (step / 2)) + (step % 2) * MIB).collect();
    expect(&churn(24 * GIB, 20_000, |numbers| sizes[numbers.between(0, sizes.len())]), 1.4, 1.6);
}
