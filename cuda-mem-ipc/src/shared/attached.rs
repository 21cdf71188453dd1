//! Exporters whose importers are told of a pool's segments as soon as they are there.

use std::sync::{Arc, Mutex, Weak};

use super::exporter::ExportLink;
use super::face::{Face, Means};
use super::lock;

#[derive(Debug, Default)]
pub(super) struct Attached(Mutex<Vec<Weak<ExportLink>>>);

impl Attached {
    pub(super) fn add(&self, link: &Arc<ExportLink>) {
        let mut links = lock(&self.0);
        links.retain(|known| known.strong_count() > 0);
        if !links.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(link))) {
            links.push(Arc::downgrade(link));
        }
    }

    /// Tells them of a new segment. Whoever cannot be told now is told with the first buffer.
    pub(super) fn tell(&self, segment: &Face, means: Means<'_>) {
        let links = lock(&self.0).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        for link in links {
            let _ = link.announce_ahead(segment, |told| told(means));
        }
    }
}
