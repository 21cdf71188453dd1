//! The streams that exist.
//!
//! A capture that begins between the question whether a stream captures and the one whether it has work is ended by the second
//! (seen on hardware), so that one is put to streams alone which nobody else can have capture. Of the others an event is asked
//! that was recorded on them: a record into a capture leaves it as it is.
//!
//! # Safety
//!
//! Relies on a stream leaving the list before it is destroyed, or before its owner may destroy it, and on nobody naming one, or its
//! context, but under a lock that its leaving takes: the list's, or for a stream that was lent its own.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, Mutex};

use cuda_mem_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream_st};

use super::{Inner, Kind, StreamId, is_capturing};
use crate::driver::{Context, Driver, Event, Handle, LateReports, Relaxed, lock, try_lock};
use crate::error::{Error, Result, call, expect_lost, query};

/// All streams of a driver that are known here, but for the default streams of threads, which no other thread can ask about, and guests.
#[derive(Debug, Default)]
pub(super) struct KnownStreams {
    /// By where their values are.
    streams: Mutex<HashMap<usize, Entry>>,
    /// The guests that captured when they were last asked, and their contexts, by where the values are that were asked.
    capturing: Mutex<HashMap<usize, (StreamId, Context)>>,
}

#[derive(Debug)]
struct Entry {
    known: Arc<Known>,
    context: Context,
    /// Whether somebody else may have it capture.
    is_lent: bool,
}

#[derive(Debug)]
struct Known {
    raw: Handle<CUstream_st>,
    is_legacy: bool,
    /// None once it has left. Held while a stream that was lent is named.
    here: Mutex<Option<Here>>,
}

/// What goes with the stream, because its context may be destroyed then: whoever looks keeps none of it.
#[derive(Debug)]
struct Here {
    context: Context,
    /// The last point behind what it was given; none if it captured then.
    point: Option<Point>,
}

#[derive(Debug)]
enum Point {
    At(Event),
    /// The context is lost, with all that ran there.
    Lost,
}

impl KnownStreams {
    pub(super) fn enter(&self, stream: &Inner) {
        if matches!(stream.kind, Kind::PerThread(_) | Kind::Guest) {
            return;
        }
        let context = stream.context.clone();
        let here = Some(Here { context: context.clone(), point: None });
        let known = Known { raw: stream.raw, is_legacy: stream.kind == Kind::Legacy, here: Mutex::new(here) };
        let entry = Entry { known: Arc::new(known), context, is_lent: stream.kind != Kind::Owned };
        lock(&self.streams).insert(place(stream), entry);
    }

    /// Somebody else may have it capture from now on. Waits for whoever asks about it.
    pub(super) fn lend(&self, stream: &Inner) {
        if let Some(entry) = lock(&self.streams).get_mut(&place(stream)) {
            entry.is_lent = true;
        }
    }

    pub(super) fn leave(&self, stream: &Inner) {
        if stream.kind == Kind::Guest {
            lock(&self.capturing).remove(&place(stream));
            return;
        }
        if matches!(stream.kind, Kind::PerThread(_)) {
            // Never entered. A thread that ends drops it without a lock.
            return;
        }
        let left = lock(&self.streams).remove(&place(stream));
        // Outside the lock, which a record must not hold up that the driver makes wait; and what has left may hold the last
        // handle to a context, though the stream has one as a rule.
        if let Some(entry) = left {
            let here = lock(&entry.known.here).take();
            drop(here);
        }
    }

    /// What a guest has answered that was asked whether it captures.
    pub(super) fn note_guest(&self, stream: &Inner, captures: bool) {
        let mut capturing = lock(&self.capturing);
        if captures {
            capturing.insert(place(stream), (stream.id, stream.context.clone()));
        } else {
            capturing.retain(|_, (id, _)| *id != stream.id);
        }
    }

    /// Takes what guests of a context have answered for over.
    pub(super) fn forget_captures(&self, context: &Context) {
        lock(&self.capturing).retain(|_, (_, of)| of != context);
    }

    fn guests_capture(&self, context: &Context) -> bool {
        lock(&self.capturing).values().any(|(_, of)| of == context)
    }

    /// Whether one of a context captures that was lent, or a blocking one, or the calling thread's default stream, or a guest did when it was
    /// last asked.
    pub(super) fn captures_in(&self, context: &Context) -> Result<bool> {
        let _bound = context.bind()?;
        match is_capturing(context.driver(), CU_STREAM_LEGACY) {
            // Nothing captures in a lost context, of which every question tells. A guest that captured there cannot be asked again.
            Err(error) => return expect_lost(error).map(|()| false),
            Ok(captures) if captures || self.guests_capture(context) => return Ok(true),
            Ok(_) => {}
        }
        for known in self.known(|entry| entry.is_lent && entry.context == *context) {
            let here = lock(&known.here);
            if here.is_some() && is_capturing(context.driver(), known.raw.raw())? {
                return Ok(true);
            }
        }
        is_capturing(context.driver(), CU_STREAM_PER_THREAD)
    }

    /// Waits until the streams of a context have done what they were given by now.
    pub(super) fn wait_in(&self, context: &Context) -> Result<()> {
        let _reports = LateReports::new();
        let _relaxed = Relaxed::enter(context.driver())?;
        let capturing = || Error::Capturing { call: "Context::wait_for_streams" };
        let mut points = Vec::new();
        for known in self.known(|entry| entry.context == *context) {
            if let Some(here) = &*lock(&known.here) {
                points.push(known.point(&here.context)?.ok_or_else(capturing)?);
            }
        }
        if self.guests_capture(context) {
            return Err(capturing());
        }
        points.iter().try_for_each(|point| match point.synchronize() {
            // A capture had it that has begun and ended meanwhile: it says nothing.
            Err(error) if error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE) => Err(capturing()),
            waited => waited,
        })
    }

    /// Calls `ask` while nobody here names a stream that was lent.
    pub(super) fn alone<R>(&self, stream: &Inner, ask: impl FnOnce() -> R) -> R {
        let known = lock(&self.streams).get(&place(stream)).map(|entry| Arc::clone(&entry.known));
        let _named = known.as_ref().map(|known| lock(&known.here));
        ask()
    }

    /// Whether a stream has no work; None if it was lent, or is not here.
    pub(super) fn is_idle(&self, stream: &Inner) -> Result<Option<bool>> {
        let _reports = LateReports::new();
        let _relaxed = Relaxed::enter(stream.context.driver())?;
        match lock(&self.streams).get(&place(stream)) {
            Some(entry) if !entry.is_lent => entry.is_idle().map(Some),
            _ => Ok(None),
        }
    }

    fn known(&self, is_asked_for: impl Fn(&Entry) -> bool) -> Vec<Arc<Known>> {
        let known = |entry: &Entry| is_asked_for(entry).then(|| Arc::clone(&entry.known));
        lock(&self.streams).values().filter_map(known).collect()
    }

    /// Records a point behind what each stream was given that was lent, and tells whether there are such streams. The driver makes the
    /// record wait while somebody frees or unregisters memory: not for a thread that others wait for.
    pub(super) fn record_points(&self, driver: Driver) -> bool {
        let _reports = LateReports::new();
        let Ok(_relaxed) = Relaxed::enter(driver) else { return false };
        let lent = self.known(|entry| entry.is_lent);
        lent.iter().for_each(|known| known.record_point());
        !lent.is_empty()
    }

    /// Whether none has work: one that was lent none before its point, or is busy if nobody has just [recorded](Self::record_points)
    /// `points`. One that captures counts as busy, and its capture stays.
    pub(super) fn are_idle(&self, driver: Driver, points: bool) -> bool {
        let Ok(_relaxed) = Relaxed::enter(driver) else { return false };
        lock(&self.streams).values().all(|entry| {
            let is_idle = match (entry.is_lent, points) {
                (false, _) => entry.is_idle(),
                (true, true) => entry.known.is_reached(),
                (true, false) => Ok(false),
            };
            match is_idle {
                Err(Error::Driver(error)) => error.context_is_lost(),
                is_idle => is_idle.unwrap_or(false),
            }
        })
    }
}

impl Entry {
    /// For a stream that was never lent, under the list's lock: it cannot capture, and is not drawn into a capture either, because
    /// what it is made to wait for is [`Stream::point`](super::Stream::point)'s.
    fn is_idle(&self) -> Result<bool> {
        let driver = self.context.driver();
        let _bound = self.context.bind()?;
        // SAFETY: a stream that exists: it is in the list.
        unsafe { query!(driver, cuStreamQuery(self.known.raw.raw())) }
    }
}

impl Known {
    /// Has a point behind what the stream was given, unless it captures.
    fn record_point(&self) {
        let mut here = lock(&self.here);
        let Some(here) = &mut *here else { return };
        // Whatever comes of this, an older one is not behind all of it.
        drop(here.point.take());
        here.point = match self.point(&here.context) {
            Ok(event) => event.map(Point::At),
            Err(Error::Driver(error)) if error.context_is_lost() => Some(Point::Lost),
            Err(_) => None,
        };
    }

    /// An event behind what the stream was given, which has not left; none if it captures.
    fn point(&self, context: &Context) -> Result<Option<Event>> {
        let driver = context.driver();
        let _bound = context.bind()?;
        let event = Event::pooled(context)?;
        if self.is_legacy {
            context.record_beside_legacy(&event)?;
        } else {
            if is_capturing(driver, self.raw.raw())? {
                return Ok(None);
            }
            // SAFETY: a live event, and a stream of its context that exists: it has not left.
            unsafe { call!(driver, cuEventRecord(event.handle(), self.raw.raw())) }?;
            // Of a capture that began before the record the event is a part, and may not be asked; of one that has ended by now it
            // says nothing, which is no answer.
            if is_capturing(driver, self.raw.raw())? {
                return Ok(None);
            }
        }
        Ok(Some(event))
    }

    /// Whether the last point was reached. False if somebody names the stream right now, whom the driver may keep waiting.
    fn is_reached(&self) -> Result<bool> {
        let here = try_lock(&self.here);
        match here.as_ref().and_then(|here| here.as_ref()?.point.as_ref()) {
            // Of a later look it may be: then it is behind more.
            Some(Point::At(event)) => event.is_complete(),
            Some(Point::Lost) => Ok(true),
            None => Ok(false),
        }
    }
}

fn place(stream: &Inner) -> usize {
    ptr::from_ref(stream).addr()
}
