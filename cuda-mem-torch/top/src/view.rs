//! What is shown: devices, the processes on each, and what those of ours are made of.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::thread;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::nvml::{self, DeviceUse};

use crate::error::Error;
use crate::figures::{DeviceFigures, ProcessFigures};
use crate::socket;

/// All of it at one moment.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) devices: Vec<DeviceView>,
    /// What could not be known, in sentences.
    pub(crate) notes: Vec<String>,
}

/// A device. Without the management library it is known by what processes of ours say.
#[derive(Debug)]
pub(crate) struct DeviceView {
    pub(crate) title: String,
    /// As the management library writes it.
    pub(crate) uuid: String,
    /// Used and all bytes.
    pub(crate) memory: Option<(u64, u64)>,
    pub(crate) busy: Option<u32>,
    pub(crate) processes: Vec<ProcessView>,
}

/// A process on a device.
#[derive(Debug, Default)]
pub(crate) struct ProcessView {
    pub(crate) pid: u32,
    pub(crate) user: String,
    pub(crate) command: String,
    /// Bytes of the device that it has, by the management library.
    pub(crate) memory: Option<u64>,
    /// What it says itself, if it is ours.
    pub(crate) own: Option<DeviceFigures>,
}

impl View {
    /// What there is now.
    pub(crate) fn gather() -> Result<Self, Error> {
        Self::of(nvml::devices(), ask_all())
    }

    /// What the library and processes of ours say, put together.
    fn of(
        devices: Result<Vec<DeviceUse>, nvml::Error>,
        ours: Vec<(u32, Result<ProcessFigures, Error>)>,
    ) -> Result<Self, Error> {
        let mut view = Self::default();
        let mut found = Vec::new();
        for (pid, figures) in ours {
            match figures {
                Ok(figures) => found.extend(figures.devices.into_iter().map(|device| (pid, device))),
                Err(Error::Ask(cuda_mem_ipc::Error::PeerRefused { uid, .. })) => {
                    view.notes.push(format!(
                        "process {pid} is of user {}: only that user is told of its streams",
                        user(uid)
                    ));
                }
                // It has just ended, or is a child that was forked from one of ours.
                Err(Error::Ask(
                    cuda_mem_ipc::Error::NotListening { .. } | cuda_mem_ipc::Error::PeerExited { .. },
                )) => {}
                Err(error) => view.notes.push(format!("process {pid} does not tell: {error}")),
            }
        }
        match devices {
            Ok(devices) if devices.is_empty() && found.is_empty() => return Err(Error::NoGpu),
            Ok(devices) => view.devices.extend(devices.into_iter().map(DeviceView::of)),
            Err(error) if found.is_empty() => return Err(Error::NoDriver(error)),
            Err(error) => {
                view.notes.push(format!("only processes of cuda-mem are shown, by what they say: {error}"));
            }
        }
        for (pid, figures) in found {
            view.add(pid, figures);
        }
        Ok(view)
    }

    /// Adds what a process of ours says of a device.
    fn add(&mut self, pid: u32, figures: DeviceFigures) {
        let uuid = name_of(figures.uuid);
        let at = self.devices.iter().position(|device| device.uuid == uuid);
        let device = match at.and_then(|at| self.devices.get_mut(at)) {
            Some(device) => device,
            None => {
                let title = format!("GPU {} of its process", figures.ordinal);
                self.devices.push(DeviceView {
                    title,
                    uuid,
                    memory: None,
                    busy: None,
                    processes: Vec::new(),
                });
                let Some(device) = self.devices.last_mut() else { return };
                device
            }
        };
        match device.processes.iter_mut().find(|process| process.pid == pid) {
            Some(process) => process.own = Some(figures),
            // In a container the library may number processes otherwise.
            None => device.processes.push(ProcessView { own: Some(figures), ..ProcessView::of(pid) }),
        }
    }
}

/// Asks all processes of ours at once: one that is stopped holds up nobody.
fn ask_all() -> Vec<(u32, Result<ProcessFigures, Error>)> {
    thread::scope(|scope| {
        let asked: Vec<_> = socket::processes()
            .into_iter()
            .map(|pid| (pid, thread::Builder::new().spawn_scoped(scope, move || socket::ask(pid))))
            .collect();
        asked
            .into_iter()
            .map(|(pid, answer)| match answer.map(|answer| answer.join()) {
                Ok(Ok(answer)) => (pid, answer),
                // It cannot: nothing there panics.
                Ok(Err(_)) => (pid, Err(Error::Figures { line: 0, what: "they could not be read" })),
                Err(error) => (pid, Err(error.into())),
            })
            .collect()
    })
}

impl DeviceView {
    fn of(device: DeviceUse) -> Self {
        let processes = device.processes.iter();
        let processes =
            processes.map(|process| ProcessView { memory: process.bytes, ..ProcessView::of(process.pid) });
        Self {
            title: format!("GPU {}  {}", device.index, device.name),
            uuid: device.uuid,
            memory: Some((device.used, device.total)),
            busy: device.busy,
            processes: processes.collect(),
        }
    }
}

impl ProcessView {
    /// What the system says of a process.
    fn of(pid: u32) -> Self {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let command: String =
            command.trim().chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        let owner = fs::metadata(format!("/proc/{pid}")).map(|process| user(process.uid()));
        Self {
            pid,
            // In another process namespace there is nobody of that number here.
            user: owner.unwrap_or_else(|_| "–".to_owned()),
            command: if command.is_empty() { "–".to_owned() } else { command },
            memory: None,
            own: None,
        }
    }
}

/// The name of a user; the number of one that has none.
fn user(uid: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        // name:password:uid:...
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| uid.to_string())
}

/// What the library calls a device of this UUID.
fn name_of(uuid: [u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut name = "GPU".to_owned();
    let mut rest = digits.as_str();
    for length in [8, 4, 4, 4, 12] {
        let (part, after) = rest.split_at(length);
        name.push('-');
        name.push_str(part);
        rest = after;
    }
    name
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
pub(crate) mod tests {
    use super::*;
    use crate::figures::Part;

    pub(crate) fn figures(uuid: u8) -> DeviceFigures {
        DeviceFigures {
            uuid: [uuid; 16],
            reserved: 9 << 30,
            peak_reserved: 10 << 30,
            live: 7 << 30,
            peak_live: 8 << 30,
            parts: vec![
                Part { reserved: 8 << 30, live: 6 << 30, ..Part::default() },
                Part {
                    stream: 0x7f10,
                    pool: Some((0, 2)),
                    tag: Some("kv".into()),
                    reserved: 1 << 30,
                    live: 1 << 30,
                },
            ],
            ..DeviceFigures::default()
        }
    }

    /// A device as the library tells of it, with a process.
    pub(crate) fn device(uuid: u8, pid: u32) -> DeviceView {
        DeviceView {
            title: "GPU 0  NVIDIA H100".into(),
            uuid: name_of([uuid; 16]),
            memory: Some((12 << 30, 80 << 30)),
            busy: Some(37),
            processes: vec![ProcessView {
                pid,
                user: "alice".into(),
                command: "python train.py".into(),
                memory: Some(10 << 30),
                own: None,
            }],
        }
    }

    #[test]
    fn a_process_is_joined_with_what_it_says() {
        let mut view = View { devices: vec![device(1, 71), device(2, 72)], notes: Vec::new() };
        view.add(72, figures(2));
        view.add(73, figures(2));
        view.add(74, figures(3));
        assert_eq!(view.devices[0].processes[0].own, None);
        let second: Vec<_> =
            view.devices[1].processes.iter().map(|one| (one.pid, one.own.is_some())).collect();
        assert_eq!(second, [(72, true), (73, true)]);
        assert_eq!(view.devices[1].processes[0].memory, Some(10 << 30), "the library's figure stays");
        let third = &view.devices[2];
        assert_eq!(
            (&*third.title, &*third.uuid),
            ("GPU 0 of its process", "GPU-03030303-0303-0303-0303-030303030303")
        );
    }

    #[test]
    fn without_a_gpu_it_says_so() {
        assert!(matches!(View::of(Ok(Vec::new()), Vec::new()), Err(Error::NoGpu)));
        let refused =
            || nvml::Error::Refused { call: "nvmlInit_v2", code: 9, text: "Driver Not Loaded".into() };
        let error = View::of(Err(refused()), Vec::new()).unwrap_err();
        assert!(error.to_string().contains("nvmlInit_v2 failed: Driver Not Loaded (9)"), "{error}");
        let ours = ProcessFigures { devices: vec![figures(1)] };
        let view = View::of(Err(refused()), vec![(71, Ok(ours))]).unwrap();
        assert_eq!((view.devices.len(), view.notes.len()), (1, 1));
    }

    #[test]
    fn who_does_not_tell_is_named() {
        let silent = Error::Figures { line: 3, what: "the stream" };
        let ours = ProcessFigures { devices: vec![figures(1)] };
        let view = View::of(Ok(Vec::new()), vec![(71, Ok(ours)), (72, Err(silent))]).unwrap();
        assert!(view.notes[0].starts_with("process 72 does not tell: line 3"), "{:?}", view.notes);
    }

    #[test]
    fn this_process_has_a_name_and_a_user() {
        let own = ProcessView::of(std::process::id());
        assert!(own.command.contains("cuda_mem_top"), "{own:?}");
        assert_eq!(own.user, user(fs::metadata("/proc/self").unwrap().uid()));
        assert_eq!(user(u32::MAX - 7), (u32::MAX - 7).to_string());
        assert_eq!(ProcessView::of(u32::MAX).user, "–");
    }
}
