//! What the driver says of pointers.

use std::ffi::c_void;
use std::ptr;

use cuda_mem_sys::{
    CUmemAccess_flags, CUmemAccessDesc_v1, CUmemAllocationProp_v1, CUmemAllocationType, CUmemAttach_flags,
    CUmemLocation, CUmemLocationType, CUpointer_attribute as Attribute,
};

use crate::Case;
use crate::machine::Machine;
use crate::questions::{Questions, as_device, cu, pages};

const MIB: usize = 1 << 20;

pub(crate) const CASES: &[Case] = &[
    ("pointer attributes: cuMemAlloc, interior", |m| with(m, |q| about(q, q.alloc(4 * MIB) + 100))),
    ("pointer attributes: cuMemHostAlloc, interior", |m| {
        with(m, |q| about(q, as_device(q.pinned(MIB)) + 100))
    }),
    ("pointer attributes: registered [+100, +5100), interior +2000", |m| {
        with(m, |q| {
            let map = as_device(registered(q));
            about(q, map + 2000)
        })
    }),
    ("pointer attributes: registered, same page after the end", |m| {
        with(m, |q| {
            let map = as_device(registered(q));
            about(q, map + 5101)
        })
    }),
    ("pointer attributes: cuMemAllocAsync, interior", |m| {
        with(m, |q| about(q, q.alloc_async(MIB, q.stream()) + 100))
    }),
    ("pointer attributes: cuMemAllocAsync, freed", |m| {
        with(m, |q| {
            let (stream, at) = (q.stream(), q.alloc_async(MIB, ptr::null_mut()));
            q.expect(cu!(q, cuMemFreeAsync(at, ptr::null_mut())));
            q.expect(cu!(q, cuStreamSynchronize(stream)));
            about(q, at)
        })
    }),
    ("pointer attributes: VMM mapped with access, second of two, interior", |m| {
        with(m, |q| {
            let at = mapped(q, 2, true) + 2 * MIB as u64;
            about(q, at + 100)
        })
    }),
    ("pointer attributes: VMM mapped without access", |m| with(m, |q| about(q, mapped(q, 1, false)))),
    ("pointer attributes: managed", |m| {
        with(m, |q| {
            let mut at = 0;
            let global = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
            q.expect(cu!(q, cuMemAllocManaged(&mut at, 65536, global)));
            about(q, at)
        })
    }),
    ("pointer attributes: null", |m| with(m, |q| about(q, 0))),
    ("pointer attributes: pageable", |m| {
        with(m, |q| about(q, as_device(pages(4096, libc::PROT_READ | libc::PROT_WRITE))))
    }),
];

fn with(machine: &Machine, ask: fn(&Questions) -> String) -> String {
    ask(&Questions::new(machine))
}

fn registered(q: &Questions) -> *mut c_void {
    let map = pages(8192, libc::PROT_READ | libc::PROT_WRITE);
    q.expect(cu!(q, cuMemHostRegister(map.wrapping_byte_add(100), 5000, 0)));
    map
}

/// Mappings side by side, in a reservation as large; the address of the first.
fn mapped(q: &Questions, count: usize, with_access: bool) -> u64 {
    let device = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let properties = CUmemAllocationProp_v1 {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: device,
        ..CUmemAllocationProp_v1::default()
    };
    let size = 2 * MIB;
    let mut base = 0;
    q.expect(cu!(q, cuMemAddressReserve(&mut base, count * size, 0, 0, 0)));
    for index in 0..count {
        let at = base + (index * size) as u64;
        let mut handle = 0;
        q.expect(cu!(q, cuMemCreate(&mut handle, size, &properties, 0)));
        q.expect(cu!(q, cuMemMap(at, size, 0, handle, 0)));
    }
    if with_access {
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc_v1 { location: device, flags };
        q.expect(cu!(q, cuMemSetAccess(base, count * size, &access, 1)));
    }
    base
}

/// The value of each attribute, or its error in brackets; addresses as their distance from the one asked about.
fn about(q: &Questions, at: u64) -> String {
    let mut answers = Vec::new();
    for (name, attribute) in [
        ("CONTEXT", Attribute::CU_POINTER_ATTRIBUTE_CONTEXT),
        ("MEMORY_TYPE", Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
        ("DEVICE_POINTER", Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER),
        ("HOST_POINTER", Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER),
        ("BUFFER_ID", Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID),
        ("IS_MANAGED", Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED),
        ("DEVICE_ORDINAL", Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
        ("LEGACY_IPC", Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE),
        ("RANGE_START", Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR),
        ("RANGE_SIZE", Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE),
        ("MAPPED", Attribute::CU_POINTER_ATTRIBUTE_MAPPED),
        ("HANDLE_TYPES", Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES),
        ("ACCESS_FLAGS", Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS),
        ("MEMPOOL", Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE),
        ("MAPPING_SIZE", Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE),
    ] {
        let mut value = 0_u64;
        let code = cu!(q, cuPointerGetAttribute((&raw mut value).cast(), attribute, at));
        let answer = match (code.0, name) {
            (0, "CONTEXT" | "BUFFER_ID" | "MEMPOOL") => if value == 0 { "none" } else { "some" }.to_owned(),
            (0, "DEVICE_POINTER" | "HOST_POINTER" | "RANGE_START") => {
                format!("{:+}", value.wrapping_sub(at).cast_signed())
            }
            (0, _) => value.to_string(),
            (code, _) => format!("({code})"),
        };
        answers.push(format!("{name} {answer}"));
    }
    answers.join(", ")
}
