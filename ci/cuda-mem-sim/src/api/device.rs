//! Devices: what they are and what they can do.

use std::ffi::{CStr, c_char, c_int};

use cuda_mem_sys::{CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUresult, CUuuid};

use crate::call::Call;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// What every device is called.
const NAME: &str = "Simulated H200";

/// The attributes of an H200 under a driver of CUDA 13.0, from attribute 1 on.
#[rustfmt::skip]
const ATTRIBUTES: [c_int; 147] = [
    1024, 1024, 1024, 64, 2_147_483_647, 65_535, 65_535, 49_152, 65_536, 32, // 1…
    2_147_483_647, 65_536, 1_980_000, 512, 1, 132, 0, 0, 1, 0, // 11…
    131_072, 131_072, 65_536, 16_384, 16_384, 16_384, 32_768, 32_768, 2048, 512, // 21…
    1, 1, 0, 6, 0, 3_201_000, 6016, 62_914_560, 2048, 3, // 31…
    1, 32_768, 2048, 1, 32_768, 32_768, 8192, 8192, 32_768, 0, // 41…
    32, 32_768, 32_768, 2046, 32_768, 131_072, 65_536, 16_384, 16_384, 16_384, // 51…
    32_768, 2048, 32_768, 32_768, 2048, 32_768, 32_768, 2046, 268_435_456, 131_072, // 61…
    65_000, 2_097_120, 32_768, 32_768, 9, 0, 32_768, 1, 1, 1, // 71…
    233_472, 65_536, 1, 0, 0, 0, 2, 0, 1, 1, // 81…
    1, 0, 0, 0, 1, 1, 232_448, 0, 1, 0, // 91…
    0, 1, 1, 0, 0, 32, 1, 39_321_600, 134_217_728, 1, // 101…
    1024, 1, 1, 1, 1, 1, 1, 100, 9, 1, // 111…
    1, 1, 1, 1, 1, 4, 1, 1, 1, 0, // 121…
    -1, 0, 0, 0, 0, 0, 0, 0, 590_680_286, 415_174_878, // 131…
    1, 1, 0, 1, 1, 0, 0, // 141…
];

/// The driver version that brought an attribute; older ones refuse it. (From the headers of 12.2 to 13.0.)
fn known_since(attribute: u32) -> i32 {
    match attribute {
        130 | 131 | 134 => 12020,
        128 | 133 => 12030,
        135 => 12050,
        136 | 137 | 139 | 140 | 143 => 12080,
        138 | 141 | 142 => 12090,
        144.. => 13000,
        _ => 0,
    }
}

pub(crate) fn cuDeviceGetCount(call: &Call<'_>, count: *mut c_int) -> Outcome<()> {
    call.put(count, call.driver.config.devices.len() as c_int)
}

pub(crate) fn cuDeviceGet(call: &Call<'_>, device: *mut CUdevice, ordinal: c_int) -> Outcome<()> {
    if device.is_null() {
        return Err(INVALID_VALUE);
    }
    call.device(ordinal)?;
    call.put(device, ordinal)
}

pub(crate) fn cuDeviceGetAttribute(
    call: &Call<'_>,
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> Outcome<()> {
    if value.is_null() {
        return Err(INVALID_VALUE);
    }
    let ordinal = call.device(device)?;
    let config = &call.driver.config;
    let set = config.devices.get(ordinal).and_then(|device| device.attributes.get(&attribute.0));
    if let Some(&set) = set {
        return call.put(value, set);
    }
    let index = (attribute.0 as usize).checked_sub(1).ok_or(INVALID_VALUE)?;
    let &usual = ATTRIBUTES.get(index).ok_or(INVALID_VALUE)?;
    if known_since(attribute.0) > config.driver_version {
        return Err(INVALID_VALUE);
    }
    call.put(
        value,
        match attribute {
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => pci_device(ordinal),
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => host_node(call, ordinal),
            // Without nodes nothing can be put on one.
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            | CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED
                if config.numa_nodes == 0 =>
            {
                0
            }
            _ => usual,
        },
    )
}

/// The node of host memory next to a device; -1 where the host has no nodes.
fn host_node(call: &Call<'_>, ordinal: usize) -> c_int {
    let config = &call.driver.config;
    let told = config.devices.get(ordinal).and_then(|device| device.node);
    match (config.numa_nodes, told) {
        (0, _) => -1,
        (_, Some(node)) => node,
        (nodes, None) => ordinal as c_int % nodes,
    }
}

/// Cuts what does not fit.
pub(crate) fn cuDeviceGetName(
    call: &Call<'_>,
    name: *mut c_char,
    len: c_int,
    device: CUdevice,
) -> Outcome<()> {
    call.device(device)?;
    put_text(call, name, len, NAME)
}

/// Fails where the text does not fit.
pub(crate) fn cuDeviceGetPCIBusId(
    call: &Call<'_>,
    id: *mut c_char,
    len: c_int,
    device: CUdevice,
) -> Outcome<()> {
    let ordinal = call.device(device)?;
    let text = bus_id(ordinal);
    if usize::try_from(len).is_ok_and(|len| len <= text.len()) {
        return Err(INVALID_VALUE);
    }
    put_text(call, id, len, &text)
}

pub(crate) fn cuDeviceGetByPCIBusId(
    call: &Call<'_>,
    device: *mut CUdevice,
    id: *const c_char,
) -> Outcome<()> {
    let id: &CStr = call.text(id)?;
    let wanted = id.to_str().map_err(|_| INVALID_VALUE)?.to_ascii_lowercase();
    let mut ordinals = 0..call.driver.config.devices.len();
    // The domain and the function may be left out.
    let is_it = |ordinal: &usize| {
        let full = bus_id(*ordinal);
        let short = full.trim_start_matches("0000:");
        [full.as_str(), short].iter().any(|text| wanted == *text || format!("{wanted}.0") == *text)
    };
    let ordinal = ordinals.find(is_it).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    call.put(device, ordinal as CUdevice)
}

pub(crate) fn cuDeviceGetUuid(call: &Call<'_>, uuid: *mut CUuuid, device: CUdevice) -> Outcome<()> {
    let ordinal = call.device(device)?;
    let mut bytes = *b"cuda-mem-sim\0\0\0\0";
    // Processes tell devices apart by this: the same ordinal is the same device to all of them.
    bytes[12..].copy_from_slice(&(ordinal as u32).to_be_bytes());
    call.put(uuid, CUuuid { bytes: bytes.map(|byte| byte as c_char) })
}

pub(crate) fn cuDeviceTotalMem(call: &Call<'_>, bytes: *mut usize, device: CUdevice) -> Outcome<()> {
    let ordinal = call.device(device)?;
    let memory = call.driver.config.devices.get(ordinal).map_or(0, |device| device.memory);
    call.put(bytes, memory as usize)
}

pub(crate) fn cuDeviceCanAccessPeer(
    call: &Call<'_>,
    can: *mut c_int,
    device: CUdevice,
    peer: CUdevice,
) -> Outcome<()> {
    let (device, peer) = (call.device(device)?, call.device(peer)?);
    call.put(can, c_int::from(call.driver.config.peers.reach(device, peer)))
}

pub(crate) fn cuDeviceGetP2PAttribute(
    call: &Call<'_>,
    value: *mut c_int,
    attribute: CUdevice_P2PAttribute,
    from: CUdevice,
    to: CUdevice,
) -> Outcome<()> {
    let (from, to) = (call.device(from)?, call.device(to)?);
    if from == to {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    let reach = c_int::from(call.driver.config.peers.reach(from, to));
    call.put(
        value,
        match attribute {
            // The ranks of links are all alike.
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
            | CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
            | CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => reach,
            _ => return Err(INVALID_VALUE),
        },
    )
}

fn pci_device(ordinal: usize) -> c_int {
    6 + ordinal as c_int
}

fn bus_id(ordinal: usize) -> String {
    format!("0000:00:{:02x}.0", pci_device(ordinal))
}

/// Writes a terminated text into `len` bytes, as much of it as fits.
fn put_text(call: &Call<'_>, to: *mut c_char, len: c_int, text: &str) -> Outcome<()> {
    let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1)).ok_or(INVALID_VALUE)?;
    let bytes = text.bytes().take(room).chain([0]);
    call.put_all(to, bytes.map(|byte| byte as c_char))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual(attribute: CUdevice_attribute) -> c_int {
        ATTRIBUTES[attribute.0 as usize - 1]
    }

    #[test]
    fn the_table_is_not_shifted() {
        assert_eq!(usual(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
        assert_eq!(usual(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
        assert_eq!(usual(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
        assert_eq!(usual(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), 1);
        assert_eq!(usual(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED), 1);
        assert_eq!(usual(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), 0);
    }
}
