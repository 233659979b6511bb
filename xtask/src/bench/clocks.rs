//! The GPU's clock while a program runs, as `nvidia-smi` tells it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A watch on the clock of the first GPU; ends when dropped. Where there is no `nvidia-smi` it sees nothing.
pub(super) struct Clocks {
    smi: Option<Child>,
    lowest: Arc<Mutex<Option<u32>>>,
}

/// Often enough to see every case, whose replays take 2 ms at least, and the heat of the longer ones.
const EVERY: &str = "--loop-ms=10";

impl Clocks {
    pub(super) fn watch() -> Self {
        let lowest = Arc::new(Mutex::new(None));
        let smi = Command::new("nvidia-smi")
            .args(["--id=0", "--query-gpu=clocks.sm"])
            .args(["--format=csv,noheader,nounits", EVERY])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut smi = smi.ok();
        if let Some(stdout) = smi.as_mut().and_then(|smi| smi.stdout.take()) {
            let lowest = lowest.clone();
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if let Ok(mhz) = line.trim().parse() {
                        see(&mut lock(&lowest), mhz);
                    }
                }
            });
        }
        Self { smi, lowest }
    }

    /// The lowest clock in MHz since the last call.
    pub(super) fn lowest_since_last(&self) -> Option<u32> {
        lock(&self.lowest).take()
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        if let Some(smi) = &mut self.smi {
            // It may have ended by itself.
            let _ = smi.kill();
            let _ = smi.wait();
        }
    }
}

fn lock(lowest: &Mutex<Option<u32>>) -> std::sync::MutexGuard<'_, Option<u32>> {
    lowest.lock().unwrap_or_else(PoisonError::into_inner)
}

fn see(lowest: &mut Option<u32>, mhz: u32) {
    *lowest = Some(lowest.map_or(mhz, |lowest| lowest.min(mhz)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_counts_until_it_is_taken() {
        let clocks = Clocks {
            smi: None,
            lowest: Arc::default(),
        };
        assert_eq!(clocks.lowest_since_last(), None);
        for mhz in [1980, 1410, 1755] {
            see(&mut lock(&clocks.lowest), mhz);
        }
        assert_eq!(clocks.lowest_since_last(), Some(1410));
        assert_eq!(clocks.lowest_since_last(), None);
    }
}
