/* The C interface of libcuda_mem_torch.so, which `cargo build --release -p cuda-mem-torch-library` makes. */
/* A code other than 0 leaves a message for cuda_mem_torch_last_error in the thread. tests/abi/program.c is an example, cuda_mem_torch::abi has the rules. */
/* Written by `cargo xtask header`; do not edit. */

#ifndef CUDA_MEM_TORCH_H
#define CUDA_MEM_TORCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 What [`cuda_mem_torch_abi_version`] says. It changes when anything here changes its meaning or its layout.
 */
#define CUDA_MEM_TORCH_ABI_VERSION 8

/*
 All devices, where one may be named.
 */
#define CUDA_MEM_TORCH_ALL_DEVICES -1

/*
 All went well.
 */
#define CUDA_MEM_TORCH_OK 0

/*
 An argument is not what is accepted.
 */
#define CUDA_MEM_TORCH_INVALID_ARGUMENT 1

/*
 There is no more memory.
 */
#define CUDA_MEM_TORCH_OUT_OF_MEMORY 2

/*
 No block of this library begins at the address.
 */
#define CUDA_MEM_TORCH_NOT_OURS 3

/*
 The process was forked from one that had the driver.
 */
#define CUDA_MEM_TORCH_FORKED 4

/*
 The driver refused; [`cuda_mem_torch_last_driver_code`] says with what.
 */
#define CUDA_MEM_TORCH_DRIVER 5

/*
 A private pool is not as the call needs it, for a reason that has no code of its own.
 */
#define CUDA_MEM_TORCH_POOL 6

/*
 A stream captures a graph, and the call would have disturbed that.
 */
#define CUDA_MEM_TORCH_CAPTURING 7

/*
 The system refused.
 */
#define CUDA_MEM_TORCH_SYSTEM 8

/*
 The device or the memory cannot do this.
 */
#define CUDA_MEM_TORCH_UNSUPPORTED 9

/*
 Called from a function that was passed in, where it cannot be.
 */
#define CUDA_MEM_TORCH_IN_CALLBACK 10

/*
 A defect of this library.
 */
#define CUDA_MEM_TORCH_INTERNAL 11

/*
 A pool's source failed, and said so by [`cuda_mem_torch_source_failed`](super::cuda_mem_torch_source_failed).
 */
#define CUDA_MEM_TORCH_SOURCE_FAILED 12

/*
 A tag is not as the call needs it: it sleeps, is awake, or another call is at work with it.
 */
#define CUDA_MEM_TORCH_SLEEP 13

/*
 Allocations go to the pool already.
 */
#define CUDA_MEM_TORCH_POOL_BEGUN 14

/*
 No allocations go to the pool.
 */
#define CUDA_MEM_TORCH_POOL_NOT_BEGUN 15

/*
 Streams still use blocks of the pool that were freed.
 */
#define CUDA_MEM_TORCH_POOL_PENDING 16

/*
 There is no such pool.
 */
#define CUDA_MEM_TORCH_POOL_UNKNOWN 17

/*
 The pool's last use has ended.
 */
#define CUDA_MEM_TORCH_POOL_RELEASED 18

/*
 The bytes of what sleeps are in pinned host memory.
 */
#define CUDA_MEM_TORCH_BACKUP_PINNED 0

/*
 The bytes of what sleeps are lost.
 */
#define CUDA_MEM_TORCH_BACKUP_DISCARD 1

/*
 What wakes has what it had, as far as there is a backup.
 */
#define CUDA_MEM_TORCH_RESTORE_BACKUP -1

/*
 What wakes has anything.
 */
#define CUDA_MEM_TORCH_RESTORE_NOTHING -2

/*
 The layout of a pool at one moment.
 */
typedef struct cuda_mem_torch_checkpoint cuda_mem_torch_checkpoint;

/*
 An allocation on every rank of a group.
 */
typedef struct cuda_mem_torch_symm_handle cuda_mem_torch_symm_handle;

/*
 Is told of a request that failed: the device, the bytes that were asked for, what may be held or what the device has, and what
 it has free.
 */
typedef void (*cuda_mem_torch_oom_observer)(void *data, int64_t device, size_t requested, size_t total, size_t free);

/*
 Frees what it can when there is no memory; whether it freed anything.
 */
typedef bool (*cuda_mem_torch_oom_reclaimer)(void *data, size_t requested);

/*
 A private pool, as PyTorch's `MempoolId_t`. Zeros are no pool.
 */
typedef struct cuda_mem_torch_pool_id {
  /*
   Of a graph's pool.
   */
  uint64_t first;
  /*
   Of a user's pool.
   */
  uint64_t second;
} cuda_mem_torch_pool_id;

/*
 Something that happened.
 */
typedef struct cuda_mem_torch_trace_entry {
  /*
   What: the number of the action in PyTorch's `TraceEntry::Action`.
   */
  int action;
  /*
   The device.
   */
  int device;
  /*
   Where it begins; what the device had free, of a lack of memory.
   */
  uint64_t address;
  /*
   Bytes.
   */
  uint64_t size;
  /*
   The stream.
   */
  void *stream;
  /*
   When, in microseconds since 1970.
   */
  uint64_t time_us;
  /*
   The context of the call that did it; null without.
   */
  void *context;
  /*
   What was compiled; empty without.
   */
  const char *compile_context;
  /*
   What the program says of it; empty without.
   */
  const char *user_metadata;
  /*
   The private pool; zeros of the default one.
   */
  struct cuda_mem_torch_pool_id pool;
} cuda_mem_torch_trace_entry;

/*
 Is told of each entry of the history, by the thread whose call made it, before that call returns.
 */
typedef void (*cuda_mem_torch_trace_tracker)(void *data, const struct cuda_mem_torch_trace_entry *entry);

/*
 Tells where the calling thread is, as a pointer that is the history's from then on. It may be null.
 */
typedef void *(*cuda_mem_torch_gather_context)(void);

/*
 Takes such a pointer back. It is called by any thread, with no lock held that the program knows.
 */
typedef void (*cuda_mem_torch_release_context)(void *context);

/*
 Which entries are recorded, and how many.
 */
typedef struct cuda_mem_torch_history_options {
  /*
   How many entries are kept, the newest ones.
   */
  uint64_t max_entries;
  /*
   For what the context is recorded: 0 nothing, 1 blocks in use, 2 allocations too, 3 frees too. PyTorch's `RecordContext`.
   */
  uint32_t context;
  /*
   What is not recorded: a bit for each action, by its number in the trace.
   */
  uint32_t skip_actions;
  /*
   Tells the context; null for none. Called with no lock held.
   */
  cuda_mem_torch_gather_context gather;
  /*
   Takes it back.
   */
  cuda_mem_torch_release_context release;
  /*
   Whether earlier entries are forgotten.
   */
  bool clear;
} cuda_mem_torch_history_options;

/*
 Is told of a block and its bytes.
 */
typedef void (*cuda_mem_torch_pinned_visit)(void *data, void *address, size_t bytes);

/*
 A figure that goes up and down.
 */
typedef struct cuda_mem_torch_stat {
  /*
   Now.
   */
  int64_t current;
  /*
   The most since the peaks were reset.
   */
  int64_t peak;
  /*
   The sum of what was added since the accumulated figures were reset.
   */
  int64_t allocated;
  /*
   The sum of what was taken away since then.
   */
  int64_t freed;
} cuda_mem_torch_stat;

/*
 How long a kind of driver call took, in microseconds.
 */
typedef struct cuda_mem_torch_duration {
  /*
   All calls together.
   */
  int64_t total;
  /*
   The longest since the peaks were last reset.
   */
  int64_t max;
  /*
   The shortest since then; 0 without calls.
   */
  int64_t min;
  /*
   How many there were.
   */
  int64_t count;
} cuda_mem_torch_duration;

/*
 All figures of pinned memory, as `torch.cuda.host_memory_stats()` names them.
 */
typedef struct cuda_mem_torch_pinned_stats {
  /*
   Pieces of memory that the driver holds pinned.
   */
  struct cuda_mem_torch_stat allocations;
  /*
   Their bytes.
   */
  struct cuda_mem_torch_stat allocated_bytes;
  /*
   Allocated blocks.
   */
  struct cuda_mem_torch_stat active_requests;
  /*
   Their bytes.
   */
  struct cuda_mem_torch_stat active_bytes;
  /*
   Calls that pinned memory.
   */
  int64_t num_host_alloc;
  /*
   Calls that gave it back.
   */
  int64_t num_host_free;
  /*
   How long the former took.
   */
  struct cuda_mem_torch_duration host_alloc_time;
  /*
   How long the latter took.
   */
  struct cuda_mem_torch_duration host_free_time;
} cuda_mem_torch_pinned_stats;

/*
 Whether an allocation for this stream, in the calling thread, goes to the pool. A thread that ends a use of a pool waits for filters that
 other threads ask: a filter must not wait for such a thread.
 */
typedef bool (*cuda_mem_torch_filter)(void *data, void *stream);

/*
 Where a pool's segments come from, if not from the device: another allocator.
 */
typedef struct cuda_mem_torch_source {
  /*
   What each function is passed first.
   */
  void *data;
  /*
   Memory of so many bytes at a multiple of 256, or null if there is none, which is a lack of memory unless
   [`cuda_mem_torch_source_failed`] was called.
   */
  void *(*alloc)(void *data, size_t bytes);
  /*
   Takes it back. Nothing uses it any more.
   */
  void (*free)(void *data, void *address, size_t bytes);
  /*
   The pool needs the source no more; may be null.
   */
  void (*release)(void *data);
} cuda_mem_torch_source;

/*
 A recording: a snapshot in PyTorch's format (.pickle, .pickle.gz), of whichever allocator, or a trace (.csv, .csv.gz).
 */
typedef struct cuda_mem_torch_recording {
  /*
   Its file, a path that ends with a 0; null for one in memory.
   */
  const char *path;
  /*
   The bytes of one in memory.
   */
  const uint8_t *data;
  /*
   How many.
   */
  size_t size;
  /*
   What the page calls it; null for the file's name.
   */
  const char *name;
} cuda_mem_torch_recording;

/*
 What is drawn, and where it goes.
 */
typedef struct cuda_mem_torch_drawing {
  /*
   The recordings, which share the page.
   */
  const struct cuda_mem_torch_recording *inputs;
  /*
   How many, at least one.
   */
  size_t count;
  /*
   An earlier snapshot, which the first recording is compared with; null for none.
   */
  const struct cuda_mem_torch_recording *before;
  /*
   The page's heading; null for the names of the recordings.
   */
  const char *title;
  /*
   The device that is shown first; a negative one for the one that has most.
   */
  int device;
  /*
   Where the page goes, a path that ends with a 0; null for none.
   */
  const char *page;
  /*
   Where the timeline goes for Perfetto, likewise.
   */
  const char *perfetto;
  /*
   Where live bytes at the peak go by call stack, for tools that draw flame graphs, likewise.
   */
  const char *folded;
  /*
   What `progress` is passed first.
   */
  void *data;
  /*
   Hears how far it is, a few times a second: what is done, and how much of how much; `total` is 0 where that is not known. May be null.
   */
  void (*progress)(void *data, const char *stage, uint64_t done, uint64_t total);
} cuda_mem_torch_drawing;

/*
 What private pools do. Its rounding and its threshold count for the default pool too.
 */
typedef struct cuda_mem_torch_options {
  /*
   The segment that sizes between 1 and 10 MiB share, in bytes.
   */
  uint64_t large_segment_size;
  /*
   Blocks of this many bytes and more are not split; the largest number for none.
   */
  uint64_t max_split_size;
  /*
   How many bytes larger than its request a block may be that is not split.
   */
  uint64_t max_non_split_rounding_size;
  /*
   Into how many steps sizes are rounded between powers of two, from 1 MiB on.
   */
  uint64_t roundup_power2_divisions[16];
  /*
   Which part of the limit may be held before all that is free goes when more is needed; 0 for none.
   */
  double garbage_collection_threshold;
} cuda_mem_torch_options;

/*
 What came of putting tags to sleep, in bytes.
 */
typedef struct cuda_mem_torch_slept {
  /*
   Given back to the driver.
   */
  size_t freed;
  /*
   Taken by the backup.
   */
  size_t saved;
  /*
   Of `freed`, not shown as free by the driver: another holder (an export, an import) has it, or another process took it.
   */
  size_t missing;
} cuda_mem_torch_slept;

/*
 Addresses of a device.
 */
typedef struct cuda_mem_torch_range {
  /*
   The first.
   */
  void *address;
  /*
   How many.
   */
  size_t bytes;
} cuda_mem_torch_range;

/*
 The functions that are told what came of it. Each may be null. What they are passed is theirs during the call.
 */
typedef struct cuda_mem_torch_sleep_visitor {
  /*
   What each is passed first.
   */
  void *data;
  /*
   A range that was to be kept, the bytes that stayed awake for it, and for whom.
   */
  void (*kept)(void *data, struct cuda_mem_torch_range range, size_t stayed, const char *reason);
  /*
   A segment that the driver refused to unmap or to take, and why.
   */
  void (*refused)(void *data, struct cuda_mem_torch_range range, const char *why);
  /*
   A registrant that was told, how many nanoseconds it took, and what it failed with; null if it did not.
   */
  void (*notice)(void *data, uint64_t registrant, uint64_t nanoseconds, const char *error);
} cuda_mem_torch_sleep_visitor;

/*
 Is told of a change behind addresses of a tag: before memory goes, or after it came. Not 0 if it failed, which changes nothing.
 */
typedef int (*cuda_mem_torch_backing_change)(void *data,
                                             int device,
                                             const char *tag,
                                             bool is_leaving,
                                             const struct cuda_mem_torch_range *ranges,
                                             size_t count);

/*
 A segment.
 */
typedef struct cuda_mem_torch_segment {
  /*
   Where it begins.
   */
  void *address;
  /*
   The stream it is for.
   */
  void *stream;
  /*
   Bytes.
   */
  uint64_t total_size;
  /*
   Bytes of allocated blocks.
   */
  uint64_t allocated_size;
  /*
   Bytes of allocated blocks, and of freed ones that a stream still uses.
   */
  uint64_t active_size;
  /*
   As `active_size`, as it was asked for.
   */
  uint64_t requested_size;
  /*
   The private pool it belongs to; zeros for the default one.
   */
  struct cuda_mem_torch_pool_id pool;
  /*
   How many segments of its private pool, on its device, came before it; -1 in the default pool, whose ranges grow and change.
   */
  int64_t serial;
  /*
   The device.
   */
  int device;
  /*
   Whether its blocks are larger than 1 MiB.
   */
  bool is_large;
  /*
   Whether its memory is mapped page by page.
   */
  bool is_expandable;
  /*
   The context of the allocation that it was made for; null without.
   */
  void *context;
} cuda_mem_torch_segment;

/*
 A block of the segment that was told of last.
 */
typedef struct cuda_mem_torch_block {
  /*
   Where it begins.
   */
  void *address;
  /*
   Bytes.
   */
  uint64_t size;
  /*
   Bytes that were asked for; 0 of a free one.
   */
  uint64_t requested_size;
  /*
   Whether it is allocated.
   */
  bool allocated;
  /*
   Whether it is allocated, or freed and still used by a stream.
   */
  bool active;
  /*
   The context of its allocation; null without.
   */
  void *context;
} cuda_mem_torch_block;

/*
 The functions that are told. Each may be null. What they are passed is theirs during the call.
 */
typedef struct cuda_mem_torch_visitor {
  /*
   What each is passed first.
   */
  void *data;
  /*
   A segment; its blocks come next.
   */
  void (*segment)(void *data, const struct cuda_mem_torch_segment *segment);
  /*
   A block.
   */
  void (*block)(void *data, const struct cuda_mem_torch_block *block);
  /*
   An entry of the history, the oldest first.
   */
  void (*trace)(void *data, const struct cuda_mem_torch_trace_entry *entry);
  /*
   A private pool whose memory is a tag's, with the tag's name. Comes with the history.
   */
  void (*tag)(void *data, int device, struct cuda_mem_torch_pool_id pool, const char *name);
} cuda_mem_torch_visitor;

/*
 A figure of all blocks, and of those of each kind of pool: PyTorch's `StatArray`.
 */
typedef struct cuda_mem_torch_stat_array {
  /*
   Of both.
   */
  struct cuda_mem_torch_stat all;
  /*
   Of blocks up to 1 MiB.
   */
  struct cuda_mem_torch_stat small_pool;
  /*
   Of all others.
   */
  struct cuda_mem_torch_stat large_pool;
} cuda_mem_torch_stat_array;

/*
 All figures of a device, as `torch.cuda.memory_stats()` names them.
 */
typedef struct cuda_mem_torch_device_stats {
  /*
   Allocated blocks.
   */
  struct cuda_mem_torch_stat_array allocation;
  /*
   Pieces of memory that the driver gave.
   */
  struct cuda_mem_torch_stat_array segment;
  /*
   Allocated blocks, and freed ones that a stream still uses.
   */
  struct cuda_mem_torch_stat_array active;
  /*
   Free blocks beside others.
   */
  struct cuda_mem_torch_stat_array inactive_split;
  /*
   Bytes of `allocation`.
   */
  struct cuda_mem_torch_stat_array allocated_bytes;
  /*
   Bytes of `segment`.
   */
  struct cuda_mem_torch_stat_array reserved_bytes;
  /*
   Bytes of `active`.
   */
  struct cuda_mem_torch_stat_array active_bytes;
  /*
   Bytes of `inactive_split`.
   */
  struct cuda_mem_torch_stat_array inactive_split_bytes;
  /*
   Bytes of `active`, as they were asked for.
   */
  struct cuda_mem_torch_stat_array requested_bytes;
  /*
   Allocated blocks of `max_split_size` bytes and more.
   */
  struct cuda_mem_torch_stat oversize_allocations;
  /*
   Segments of as many.
   */
  struct cuda_mem_torch_stat oversize_segments;
  /*
   Requests for which cached memory went back to the driver first.
   */
  int64_t num_alloc_retries;
  /*
   Requests that failed for lack of memory.
   */
  int64_t num_ooms;
  /*
   Waits for all streams: for lack of memory, or before the cache was emptied.
   */
  int64_t num_sync_all_streams;
  /*
   Driver calls that got memory.
   */
  int64_t num_device_alloc;
  /*
   Driver calls that gave memory back.
   */
  int64_t num_device_free;
  /*
   Blocks of this many bytes and more are not cut up; -1 if all are.
   */
  int64_t max_split_size;
} cuda_mem_torch_device_stats;

/*
 What there is to know of one.
 */
typedef struct cuda_mem_torch_symm_info {
  /*
   This process's rank.
   */
  size_t rank;
  /*
   How many ranks there are.
   */
  size_t world_size;
  /*
   Bytes of the allocation, from its beginning.
   */
  size_t buffer_size;
  /*
   Bytes of a signal pad: `uint32_t` slots for kernels, in PyTorch's layout.
   */
  size_t signal_pad_size;
  /*
   How far behind the allocation's beginning the address of the rendezvous was.
   */
  size_t offset;
} cuda_mem_torch_symm_info;

/*
 How much of a tag is awake.
 */
typedef struct cuda_mem_torch_tag_state {
  /*
   Bytes with memory.
   */
  size_t awake_bytes;
  /*
   Bytes without.
   */
  size_t asleep_bytes;
  /*
   Bytes of pinned host memory for backups.
   */
  size_t backup_bytes;
  /*
   Whether it was put to sleep: allocations in it are refused.
   */
  bool is_asleep;
} cuda_mem_torch_tag_state;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The version of the interface, [`CUDA_MEM_TORCH_ABI_VERSION`] of the header that the library was built with. Ask before anything else.
 */
uint32_t cuda_mem_torch_abi_version(void);

/*
 The version of the library, for people.
 */
const char *cuda_mem_torch_version(void);

/*
 Has `observer` be told of each request that fails for lack of memory, on any device, before its caller is.

 # Safety

 It may be called with `data` by any thread until the process ends.
 */
int cuda_mem_torch_attach_oom_observer(cuda_mem_torch_oom_observer observer, void *data);

/*
 Has `reclaimer` be called when there is no memory, after all that the library can do by itself; then all is tried once more.

 # Safety

 As [`cuda_mem_torch_attach_oom_observer`].
 */
int cuda_mem_torch_attach_oom_reclaimer(cuda_mem_torch_oom_reclaimer reclaimer,
                                        void *data);

/*
 Has `tracker` be told of every entry of the history, also while nothing is recorded. Other threads that allocate wait
 meanwhile: it must not wait for them, nor take the GIL.

 # Safety

 As [`cuda_mem_torch_attach_oom_observer`].
 */
int cuda_mem_torch_attach_trace_tracker(cuda_mem_torch_trace_tracker tracker, void *data);

/*
 The layout of a pool as it is, which the caller has until it is given to [`cuda_mem_torch_free_checkpoint`].

 # Safety

 `checkpoint` is a place for its address.
 */
int cuda_mem_torch_checkpoint_pool(int device,
                                   struct cuda_mem_torch_pool_id pool,
                                   struct cuda_mem_torch_checkpoint **checkpoint);

/*
 Makes a pool's layout what it was: `freed` is told of each block that there was, `allocated` of each that there is.

 # Safety

 `checkpoint` came from [`cuda_mem_torch_checkpoint_pool`] for this device; what is told as freed is not used any more, also not on
 recorded streams, and not freed by anybody else. The functions may be called with `data`.
 */
int cuda_mem_torch_restore_pool(int device,
                                const struct cuda_mem_torch_checkpoint *checkpoint,
                                void *data,
                                void (*freed)(void *data, void *address),
                                void (*allocated)(void *data, void *address));

/*
 Frees a checkpoint; the pool stays as it is. Null is nothing.

 # Safety

 It came from [`cuda_mem_torch_checkpoint_pool`] and is given back once.
 */
void cuda_mem_torch_free_checkpoint(struct cuda_mem_torch_checkpoint *checkpoint);

/*
 Refuses more devices than the driver has. Nothing is made on them yet, and it may be called again.
 */
int cuda_mem_torch_init(int device_count);

/*
 What to do next, of the failure that the calling thread met last: text in UTF-8, which stays until its next one. Empty
 before the first. In a forked child it says so, whatever the parent had met.
 */
const char *cuda_mem_torch_last_error(void);

/*
 The driver's code (`CUresult`) of that failure; 0 if the driver refused nothing.
 */
int cuda_mem_torch_last_driver_code(void);

/*
 Records on all devices from now on. If it does already, the options change.

 # Safety

 `options` points to them; their functions may be called by any thread until the process ends.
 */
int cuda_mem_torch_record_history(const struct cuda_mem_torch_history_options *options);

/*
 Records no more, and forgets all entries.
 */
int cuda_mem_torch_stop_history(void);

/*
 Whether it is recorded.
 */
bool cuda_mem_torch_is_history_enabled(void);

/*
 What the calling thread says of what it does next; null is nothing.

 # Safety

 `metadata` is null or text.
 */
int cuda_mem_torch_set_user_metadata(const char *metadata);

/*
 What is compiled in the calling thread from here on, on top of what it said before.

 # Safety

 `context` is text.
 */
int cuda_mem_torch_push_compile_context(const char *context);

/*
 Ends what [`cuda_mem_torch_push_compile_context`] said last in the calling thread.
 */
int cuda_mem_torch_pop_compile_context(void);

/*
 Names a block for other processes in PyTorch's format: `handle` gets up to `capacity` bytes, `length` how many there are, `offset`
 where in the named memory the block begins. A process that opens it keeps the memory, but not the block: this process does not free the
 block before the others are done.

 `version` is 2 for PyTorch 2.11 and 2.12, 3 for later ones. Memory of private pools, and memory that was made without caching, goes by
 the driver's handle, which [`cuda_mem_torch_ipc_open`] leaves to the native allocator; `CUDA_MEM_TORCH_UNSUPPORTED` where the
 driver makes none.

 # Safety

 `handle` is null or has room for `capacity` bytes; `length` and `offset` are places for their values.
 */
int cuda_mem_torch_ipc_share(void *address,
                             uint8_t version,
                             uint8_t *handle,
                             size_t capacity,
                             size_t *length,
                             size_t *offset);

/*
 Maps what another process told of, for a device. The same bytes give the same address, until all have closed it.
 `CUDA_MEM_TORCH_NOT_OURS` for memory of `cuMemAlloc` and for handles of a fabric, which PyTorch's own allocator opens.

 # Safety

 `handle` has `length` bytes; `address` is a place for one address.
 */
int cuda_mem_torch_ipc_open(int device, const uint8_t *handle, size_t length, void **address);

/*
 Ends one use of what [`cuda_mem_torch_ipc_open`] gave; the last one waits for the devices that reach it, and unmaps it. Whatever is
 returned, the use has ended: while a stream captures, a later call unmaps it that opens or closes memory or empties the cache.

 # Safety

 No work uses it that is given to the device later.
 */
int cuda_mem_torch_ipc_close(void *address);

/*
 Memory of `bytes` bytes for work of a stream of the device, at a multiple of 512, or of 256 where a pool's source gives such; null for no bytes.

 `CUDA_MEM_TORCH_OUT_OF_MEMORY` after all that can be done; the message is then PyTorch's, with what would help.
 `CUDA_MEM_TORCH_CAPTURING` for a stream that captures while caching is off.

 # Safety

 `stream` is a stream of the device, `address` a place for one address.
 */
int cuda_mem_torch_malloc(int device,
                          size_t bytes,
                          void *stream,
                          void **address);

/*
 As [`cuda_mem_torch_malloc`], exactly the memory from `address` on, out of what is cached for that stream in the default pool; none
 for no bytes.

 `CUDA_MEM_TORCH_NOT_OURS` if not all of it is free there, and while caching is off or the stream's requests go to a private pool.

 # Safety

 `stream` is a stream of the device.
 */
int cuda_mem_torch_malloc_at(int device,
                             size_t bytes,
                             void *stream,
                             void *address);

/*
 Takes a block back, ordered on the stream that it was allocated for. Null is nothing.

 `CUDA_MEM_TORCH_NOT_OURS` leaves no message: the caller may ask another allocator.

 # Safety

 What uses the block is ordered before this point of its stream, or on streams that [`cuda_mem_torch_record_stream`] was told.
 */
int cuda_mem_torch_delete(void *address);

/*
 The device of the block that begins at an address; -1 if there is none of this library.
 */
int cuda_mem_torch_device_of(const void *address);

/*
 The bytes of a block, which it counts with in `allocated_bytes`; 0 for one that was made while caching was off, which does not count.
 `CUDA_MEM_TORCH_NOT_OURS` if none begins there.

 # Safety

 `bytes` is a place for a size.
 */
int cuda_mem_torch_block_bytes(const void *address,
                               size_t *bytes);

/*
 Enters a stream, of whichever device, as a user of a block: freed, the block is not reused until the stream is past
 the work that it was given by then.

 # Safety

 `stream` is a stream of `stream_device`.
 */
int cuda_mem_torch_record_stream(void *address, int stream_device, void *stream);

/*
 What a block lies in: the segment, for a block of a private pool, else the whole pages of 2 MiB.

 # Safety

 `base` and `bytes` are places for their values.
 */
int cuda_mem_torch_base_allocation(void *address, void **base, size_t *bytes);

/*
 Raises `largest` to the largest free block of the device's allocator; a 0 there stands for what the device has free.

 # Safety

 `largest` points to a size.
 */
int cuda_mem_torch_cache_info(int device, size_t *largest);

/*
 Sets the share of the device's memory that may be held, from 0 to 1; 1 is no limit. A device that is made later finds it.
 */
int cuda_mem_torch_set_memory_fraction(int device,
                                       double fraction);

/*
 The share of the device's memory that may be held.

 # Safety

 `fraction` is a place for a number.
 */
int cuda_mem_torch_memory_fraction(int device, double *fraction);

/*
 Lets `device` reach the memory of `peer`: what it has and what it gets, also of other processes.
 */
int cuda_mem_torch_enable_peer_access(int device, int peer);

/*
 Makes the cache, whose memory is pinned in the context of a device and serves all. Once it is there this does nothing.
 */
int cuda_mem_torch_pinned_open(int device);

/*
 Pinned memory of `bytes` bytes, at a multiple of 256. The cache has to be open. May be called while streams capture. Without memory it is
 [`CUDA_MEM_TORCH_DRIVER`](super::CUDA_MEM_TORCH_DRIVER) with the driver's code 2, as for `cudaHostAlloc`.

 # Safety

 `address` is a place for an address.
 */
int cuda_mem_torch_pinned_malloc(size_t bytes,
                                 void **address);

/*
 Gives a block back. It serves again once the streams are done that were recorded for it.

 # Safety

 Nothing uses it but these streams.
 */
int cuda_mem_torch_pinned_free(void *address);

/*
 Says that a stream was given work that uses the block. Of an address at which none begins it is [`CUDA_MEM_TORCH_NOT_OURS`].

 # Safety

 `stream` is a stream of the device.
 */
int cuda_mem_torch_pinned_record(void *address,
                                 int device,
                                 void *stream);

/*
 The bytes of a block, as they were asked for.

 # Safety

 `bytes` is a place for a number.
 */
int cuda_mem_torch_pinned_block_bytes(void *address, size_t *bytes);

/*
 Calls `visit` for each allocated block.

 # Safety

 `visit` may be called with `data` now, by this thread. It does not unwind.
 */
int cuda_mem_torch_pinned_blocks(cuda_mem_torch_pinned_visit visit, void *data);

/*
 Gives everything that is free back to the system. The driver waits for all work of the context before.
 */
int cuda_mem_torch_pinned_empty_cache(void);

/*
 Keeps no block of more than `bytes` bytes when it is freed, unless streams still use it: PyTorch's `pinned_max_cached_size_mb`. All are kept at first.
 */
void cuda_mem_torch_pinned_set_max_cached_size(size_t bytes);

/*
 Whether the driver allocates the memory, which takes several times as long: it refused to register any, as under confidential computing.
 */
bool cuda_mem_torch_pinned_is_allocated_by_driver(void);

/*
 The statistics; zeros before the cache is open.

 # Safety

 `stats` is a place for them.
 */
int cuda_mem_torch_pinned_statistics(struct cuda_mem_torch_pinned_stats *stats);

/*
 Has the peaks start anew from what there is now.
 */
int cuda_mem_torch_pinned_reset_peak_stats(void);

/*
 Has the accumulated figures start anew from zero.
 */
int cuda_mem_torch_pinned_reset_accumulated_stats(void);

/*
 From here on allocations that `filter` accepts go to the pool, which is made if there is none and has one use more. Of several
 that accept one, the last begun decides. It is asked without a stream, in the thread that allocates; what it allocates here itself goes
 to no pool. `release`, which may be null, is called when the filter is needed no more, also if this fails.

 # Safety

 They may be called with `data` by any thread until then.
 */
int cuda_mem_torch_pinned_begin_allocate_to_pool(struct cuda_mem_torch_pool_id pool,
                                                 cuda_mem_torch_filter filter,
                                                 void *data,
                                                 void (*release)(void *data));

/*
 Ends what [`cuda_mem_torch_pinned_begin_allocate_to_pool`] began. The pool and its memory stay.
 */
int cuda_mem_torch_pinned_end_allocate_to_pool(struct cuda_mem_torch_pool_id pool);

/*
 Ends one use of a pool. With the last its memory goes back to the system, once its blocks are freed.
 */
int cuda_mem_torch_pinned_release_pool(struct cuda_mem_torch_pool_id pool);

/*
 Pins `bytes` bytes, for all devices: `torch.cuda`'s `pin_memory(ptr, size)`.

 # Safety

 The memory stays mapped until it is unpinned.
 */
int cuda_mem_torch_pin_memory(void *address, size_t bytes);

/*
 Unpins what begins there.

 # Safety

 No device uses it.
 */
int cuda_mem_torch_unpin_memory(void *address);

/*
 PyTorch's `alloc`: memory of `size` bytes, or null if there is none. A size of 0 gives null.

 # Safety

 `stream` is a stream of the device.
 */
void *cuda_mem_torch_alloc(size_t size, int device, void *stream);

/*
 PyTorch's `free`. The memory is used again once everything is done that the device was given by then.

 # Safety

 The address came from [`cuda_mem_torch_alloc`] for this device and is given back once.
 */
void cuda_mem_torch_free(void *address, size_t _size, int device, void *_stream);

/*
 For `set_reset_fn`: what is free goes back to the driver.
 */
void cuda_mem_torch_plain_reset(void);

/*
 For `set_memory_fraction_fn`.
 */
void cuda_mem_torch_plain_memory_fraction(double fraction, int device);

/*
 For `set_base_alloc_fn`: what the block lies in. Of an address that is not ours, it is that address.

 # Safety

 `size` is null or a place for a size.
 */
void *cuda_mem_torch_plain_base_alloc(void *address, size_t *size);

/*
 For `set_record_stream_fn`. A stream of the block's own device is waited for anyway; for another the whole device is, before
 the block is used again.

 # Safety

 `stream` is a stream.
 */
void cuda_mem_torch_plain_record_stream(void *address,
                                        void *stream);

/*
 Makes a pool, or adds a use to it. With a `source`, which only a new pool takes, its segments come from there. Its `release` is
 called when it is needed no more, also if this fails.

 # Safety

 `source` is null, or points to functions that may be called with their data until its `release` is.
 */
int cuda_mem_torch_create_or_incref_pool(int device,
                                         struct cuda_mem_torch_pool_id pool,
                                         const struct cuda_mem_torch_source *source);

/*
 How often a pool is in use; 0 if there is none.

 # Safety

 `count` is a place for a number.
 */
int cuda_mem_torch_pool_use_count(int device, struct cuda_mem_torch_pool_id pool, uint64_t *count);

/*
 From here on allocations that `filter` accepts go to the pool, which is made if there is none and has one use more. Of several
 that accept one, the last begun decides. Null accepts all. `release`, which may be null, is called when the filter is needed no
 more, also if this fails.

 # Safety

 They may be called with `data` by any thread until then.
 */
int cuda_mem_torch_begin_allocate_to_pool(int device,
                                          struct cuda_mem_torch_pool_id pool,
                                          cuda_mem_torch_filter filter,
                                          void *data,
                                          void (*release)(void *data));

/*
 Ends what [`cuda_mem_torch_begin_allocate_to_pool`] began. Its use of the pool stays. When no other route is left, captures of streams that
 do not last (`cuda_mem_torch_ask_for_lasting`) are taken to have ended, also where a pool's last release ends its route.
 */
int cuda_mem_torch_end_allocate_to_pool(int device,
                                        struct cuda_mem_torch_pool_id pool);

/*
 Ends one use of the pool. The last one ends its route, and its memory goes back when the cache is emptied, or when there is no other.
 */
int cuda_mem_torch_release_pool(int device,
                                struct cuda_mem_torch_pool_id pool);

/*
 Whether the pool's free memory may serve requests that would else be out of memory.
 */
int cuda_mem_torch_set_use_on_oom(int device, struct cuda_mem_torch_pool_id pool, bool use_on_oom);

/*
 Has each request to the pool get the whole of the free block that is found for it.
 */
int cuda_mem_torch_set_no_split(int device, struct cuda_mem_torch_pool_id pool);

/*
 Gives cached memory back, of a device or of all: of a pool that was released, after a wait for what may use it; or with zeros of the
 default pool, of tags and of all released ones, after a wait for all streams that were allocated for or recorded, but for those that
 capture. What is still used stays. `bytes`, which may be null, gets how much.

 # Safety

 `bytes` is null or a place for a size.
 */
int cuda_mem_torch_empty_cache(int device,
                               struct cuda_mem_torch_pool_id pool,
                               size_t *bytes);

/*
 Whether exactly the blocks at these addresses are allocated, of all blocks of the pool.

 # Safety

 `addresses` points to `count` addresses, `are` is a place for the answer.
 */
int cuda_mem_torch_check_pool_live_allocations(int device,
                                               struct cuda_mem_torch_pool_id pool,
                                               const void *const *addresses,
                                               size_t count,
                                               bool *are);

/*
 Draws recordings as one HTML page that needs nothing else, and writes what other viewers read. No driver is needed.

 `CUDA_MEM_TORCH_INVALID_ARGUMENT` for what cannot be read, is no recording, or cannot be written: the message says which and why.

 # Safety

 `drawing` points to one whose pointers are as it says; `progress` may be called with `data`.
 */
int cuda_mem_torch_draw(const struct cuda_mem_torch_drawing *drawing);

/*
 Sets options, as a whole or not at all.

 # Safety

 `options` points to them.
 */
int cuda_mem_torch_set_options(const struct cuda_mem_torch_options *options);

/*
 Whether a block of a private pool that streams used during a capture, and that was freed, may serve that capture again once the
 graph orders its stream behind those: PyTorch's `graph_capture_record_stream_reuse`. It may not at first.

 # Safety

 While it is on, memory is not allocated for a stream that captures, nor a block freed that such a stream used, beside another
 thread that gives a stream of the same capture anything, changes its graph, or ends it. Who changes the graph leaves what came
 before a node before it.
 */
int cuda_mem_torch_set_graph_capture_record_stream_reuse(bool reuse);

/*
 Sets whether the default pool grows by pages, which may move once they are free: PyTorch's `expandable_segments`. It does at first. Else
 allocations get segments of `cuMemAlloc`, which never move; what there is stays where it is.
 */
int cuda_mem_torch_set_expandable_segments(bool expandable);

/*
 Sets what text in the form of `PYTORCH_CUDA_ALLOC_CONF` says, as a whole or not at all; what it does not name gets its default,
 but for the memory fraction. `note`, which may be null, is told of each setting that changes nothing here, and why.

 # Safety

 `settings` is text; `note` may be called with `data`; what
 [`cuda_mem_torch_set_graph_capture_record_stream_reuse`] asks for, if the text says so.
 */
int cuda_mem_torch_set_settings(const char *settings,
                                void *data,
                                void (*note)(void *data, const char *text));

/*
 Switches caching on or off. Off, each request goes to the driver and each free waits for the device, or for a later
 call while a stream captures; what was cached stays.
 */
void cuda_mem_torch_enable(bool caching);

/*
 How many blocks there are that were made while it was off, which are in no statistics. Those that were freed while a stream captured are
 among them until a later call has freed them. None in a forked child.
 */
size_t cuda_mem_torch_uncached_blocks(void);

/*
 Puts tags of a device to sleep, all of them if `count` is 0: their memory goes back to the driver, and their addresses stay. Waits for the
 device first. `slept`, and `visitor` with whatever is not null in it, are told what came of it.

 `CUDA_MEM_TORCH_CAPTURING` if a stream captures that is known here; `CUDA_MEM_TORCH_SYSTEM` without host memory for the backup;
 `CUDA_MEM_TORCH_SLEEP` if another call is at work with a tag. Nothing is changed then.

 # Safety

 From the call until the tags wake nothing is queued that uses their memory. `tags` points to `count` texts; `slept` is null or a place;
 `visitor` is null or points to functions that may be called.
 */
int cuda_mem_torch_sleep(int device,
                         const char *const *tags,
                         size_t count,
                         int backup,
                         struct cuda_mem_torch_slept *slept,
                         const struct cuda_mem_torch_sleep_visitor *visitor);

/*
 Wakes tags of a device, all of them if `count` is 0, at the addresses that they had: all or none. `restore` says what they have:
 `CUDA_MEM_TORCH_RESTORE_BACKUP`, `CUDA_MEM_TORCH_RESTORE_NOTHING`, or the byte that each is, from 0 to 255. `visitor`, which may be null, is
 told of registrants.

 `CUDA_MEM_TORCH_OUT_OF_MEMORY` if there is not enough memory: all of them sleep on, and it can be tried again.

 # Safety

 `tags` points to `count` texts; `visitor` is null or points to functions that may be called.
 */
int cuda_mem_torch_wake(int device,
                        const char *const *tags,
                        size_t count,
                        int restore,
                        const struct cuda_mem_torch_sleep_visitor *visitor);

/*
 Has `change` be told before memory of tags goes and after it came, on any device, in the order of attaching and with no lock held.
 `registrant` gets its number.

 # Safety

 It may be called with `data` by any thread until it was detached and no call of it runs; `registrant` is a place for a number.
 */
int cuda_mem_torch_attach_backing_change(cuda_mem_torch_backing_change change,
                                         void *data,
                                         uint64_t *registrant);

/*
 Ends what [`cuda_mem_torch_attach_backing_change`] began. A change that is under way in another thread may still be told.
 */
int cuda_mem_torch_detach_backing_change(uint64_t registrant);

/*
 Tells of all segments of a device or of all, of their blocks, and of the history, in which it leaves an entry; without traces it leaves
 none. A pool other than zeros limits it to its segments; the history is that of all pools, whose entries name them.

 # Safety

 `visitor` points to functions that may be called.
 */
int cuda_mem_torch_snapshot(int device,
                            struct cuda_mem_torch_pool_id pool,
                            bool include_traces,
                            const struct cuda_mem_torch_visitor *visitor);

/*
 Writes the file that PyTorch's memory viewer opens, of all devices, with the history and without the program's contexts.

 # Safety

 `path` is a path: bytes, the last of them 0.
 */
int cuda_mem_torch_write_snapshot(const char *path);

/*
 Tells of the bytes that streams have mapped of the default pool, by size class: PyTorch's `getExpandableSegmentSizes`.

 # Safety

 `size` may be called.
 */
int cuda_mem_torch_expandable_segment_sizes(int device, void *data, void (*size)(void *data,
                                                                                 void *stream,
                                                                                 bool is_small,
                                                                                 uint64_t bytes));

/*
 Called by the `alloc` of a [`cuda_mem_torch_source`] before it returns null, it says that the source fails for another reason than a lack of
 memory: nothing is tried then, and the request fails with `CUDA_MEM_TORCH_SOURCE_FAILED` and this text.

 # Safety

 `reason` is null or text that ends with a 0.
 */
void cuda_mem_torch_source_failed(const char *reason);

/*
 The statistics of a device; nothing but the option, before it is used.

 # Safety

 `stats` is a place for them.
 */
int cuda_mem_torch_stats(int device, struct cuda_mem_torch_device_stats *stats);

/*
 Tells of the bytes of the segments of each private pool that ever had one: PyTorch's `reserved_bytes_by_private_pools`.

 # Safety

 `reserved` may be called.
 */
int cuda_mem_torch_reserved_by_private_pools(int device,
                                             void *data,
                                             void (*reserved)(void *data,
                                                              struct cuda_mem_torch_pool_id pool,
                                                              struct cuda_mem_torch_stat_array bytes));

/*
 Has the peaks of a device start anew from what there is now.
 */
int cuda_mem_torch_reset_peak_stats(int device);

/*
 Has the sums and counts of a device start anew from nothing.
 */
int cuda_mem_torch_reset_accumulated_stats(int device);

/*
 Has the memory of a block, or of a part of one, stay behind its addresses, also when the block is freed, until
 [`cuda_mem_torch_let_move`]. It is not moved, not unmapped and not given back; a part of a tag stays awake when the tag is put to sleep.
 `still` gets null for memory that never moves, of a block of another private pool, or made while segments were not expandable. It is not
 held: it stays until the block is freed.

 `CUDA_MEM_TORCH_NOT_OURS` for memory of somebody else.

 # Safety

 `still` can be written to.
 */
int cuda_mem_torch_hold_still(const void *address,
                              size_t bytes,
                              void **still);

/*
 Lets memory move, or sleep, again. Null is nothing.

 # Safety

 `still` is of [`cuda_mem_torch_hold_still`] or [`cuda_mem_torch_keep`](super::cuda_mem_torch_keep), and passed here once.
 */
int cuda_mem_torch_let_move(void *still);

/*
 Asks `lasts` of each stream when it is first seen: whether it lives as long as the process. The owner of one that does not may destroy it
 at any time, but not during a call that it is passed to. Without a query all last. Another query takes the place of the last one; null
 ends it.

 Free memory of a stream that does not last serves others only where the allocator can wait for all that the device was given.

 # Safety

 It may be called by any thread until the process ends.
 */
int cuda_mem_torch_ask_for_lasting(bool (*lasts)(int device, void *stream));

/*
 Waits until a device has done all that it was given. While a stream of it captures that was seen here, it is
 [`CUDA_MEM_TORCH_CAPTURING`]. Captures go on, whenever they began and whoever's they are.
 */
int cuda_mem_torch_synchronize(int device);

/*
 Looks at a stream that does not capture, so that it may capture when it is allocated on for the first time. Nothing is allocated.

 # Safety

 `stream` is a stream of the device.
 */
int cuda_mem_torch_see_stream(int device,
                              void *stream);

/*
 A stream is about to be destroyed; another may have its handle afterwards. Blocks that were allocated for it stay, and what is free of it
 serves other streams once all that it was given is done. While it captures it is [`CUDA_MEM_TORCH_CAPTURING`], and nothing is forgotten.
 Calls on it that other threads are in just then are waited for, and none of its work.
 The default stream of a thread (handle 2) is forgotten by itself when the thread ends, if it has no work then; a thread that leaves work
 in it calls this before, for itself.

 # Safety

 The stream is not used any more.
 */
int cuda_mem_torch_forget_stream(int device,
                                 void *stream);

/*
 Joins the group `name` of `world_size` ranks, processes of this host with a device each, as rank `rank`, and returns when all are
 there: `Group::join`. `directory` is the same for all. A rank is waited for `timeout_ms` milliseconds, here and later; 0 is a
 minute. The name of a group that was left is refused until that has ended.

 # Safety

 `name` and `directory` are text.
 */
int cuda_mem_torch_symm_join(int device,
                             const char *name,
                             size_t rank,
                             size_t world_size,
                             const char *directory,
                             uint64_t timeout_ms);

/*
 Leaves a group: nothing is allocated for it any more. What was allocated stays until it is deleted, and the group ends with that and
 its last handles, after a wait for its device. While a stream of the device captures, that is left to a later call.

 # Safety

 `name` is text.
 */
int cuda_mem_torch_symm_leave(const char *name);

/*
 Memory of `bytes` bytes for a group, of which every rank allocates the same sizes in the same order. Without a name it is for the
 group that this process joined first with this device.

 # Safety

 `name` is null or text, `address` a place for one address.
 */
int cuda_mem_torch_symm_malloc(int device,
                               size_t bytes,
                               const char *name,
                               void **address);

/*
 Takes memory back, by the address that [`cuda_mem_torch_symm_malloc`] gave: one that is not allocated, or lies inside an
 allocation, is [`CUDA_MEM_TORCH_NOT_OURS`]. Handles keep the memory.

 # Safety

 What uses it was given to its device before.
 */
int cuda_mem_torch_symm_delete(int device,
                               void *address);

/*
 `alloc` for `CUDAPluggableAllocator`, behind a pool of symmetric memory: as [`cuda_mem_torch_symm_malloc`] without a name; null if
 there is none.

 # Safety

 None but the caller's for the result; the stream is not used.
 */
void *cuda_mem_torch_symm_alloc(size_t size,
                                int device,
                                void *_stream);

/*
 `free` for `CUDAPluggableAllocator`.

 # Safety

 As [`cuda_mem_torch_symm_delete`], for memory of [`cuda_mem_torch_symm_alloc`].
 */
void cuda_mem_torch_symm_free(void *address, size_t _size, int device, void *_stream);

/*
 Brings the ranks together over an allocation, by any address in it. Every rank calls it. The caller has the result until it gives it
 to [`cuda_mem_torch_symm_close`].

 # Safety

 `name` is null, for whichever group it is of, or text; `handle` is a place for its address.
 */
int cuda_mem_torch_symm_rendezvous(int device,
                                   void *address,
                                   const char *name,
                                   struct cuda_mem_torch_symm_handle **handle);

/*
 What there is to know of it; and each rank's buffer and signal pad, where this process has them.

 # Safety

 The handle is one of [`cuda_mem_torch_symm_rendezvous`]; `info` is a place for it; `buffers` and `pads` are null or have room for an
 address of each rank.
 */
int cuda_mem_torch_symm_describe(const struct cuda_mem_torch_symm_handle *handle,
                                 struct cuda_mem_torch_symm_info *info,
                                 void **buffers,
                                 void **pads);

/*
 The same addresses as arrays on the device, for kernels: each rank's buffer, and each one's signal pad. They are the handle's,
 and end with it.

 # Safety

 The handle is one of [`cuda_mem_torch_symm_rendezvous`]; `buffers` and `pads` are places for an address.
 */
int cuda_mem_torch_symm_device_addresses(const struct cuda_mem_torch_symm_handle *handle,
                                         void **buffers,
                                         void **pads);

/*
 Has later work of a stream wait for the earlier work of all ranks that call it on the same channel; `timeout_ms` of 0 is for ever.

 # Safety

 The handle is one of [`cuda_mem_torch_symm_rendezvous`], the stream one of its device.
 */
int cuda_mem_torch_symm_barrier(const struct cuda_mem_torch_symm_handle *handle,
                                void *stream,
                                size_t channel,
                                uint64_t timeout_ms);

/*
 Signals rank `to` when everything is done that the stream was given so far.

 # Safety

 As [`cuda_mem_torch_symm_barrier`].
 */
int cuda_mem_torch_symm_put_signal(const struct cuda_mem_torch_symm_handle *handle,
                                   void *stream,
                                   size_t to,
                                   size_t channel);

/*
 Has later work of the stream wait for the next signal of rank `from`.

 # Safety

 As [`cuda_mem_torch_symm_barrier`].
 */
int cuda_mem_torch_symm_wait_signal(const struct cuda_mem_torch_symm_handle *handle,
                                    void *stream,
                                    size_t from,
                                    size_t channel,
                                    uint64_t timeout_ms);

/*
 Ends the use of a handle, after a wait for its device. While a stream of the device captures, that is left to a later call. Null
 is nothing.

 # Safety

 It is one of [`cuda_mem_torch_symm_rendezvous`], closed once; what uses the memory was given to the device before.
 */
int cuda_mem_torch_symm_close(struct cuda_mem_torch_symm_handle *handle);

/*
 Has what the calling thread allocates on a device be the tag's, which is made if there is none, until [`cuda_mem_torch_leave_tag`]. Scopes
 nest.

 # Safety

 `tag` is text.
 */
int cuda_mem_torch_enter_tag(int device,
                             const char *tag);

/*
 Ends the calling thread's innermost scope of the tag.

 # Safety

 `tag` is text.
 */
int cuda_mem_torch_leave_tag(int device, const char *tag);

/*
 Gives a private pool without memory to the tag, as a whole. It is made if there is none, for its first user.

 # Safety

 `tag` is text.
 */
int cuda_mem_torch_add_pool_to_tag(int device, const char *tag, struct cuda_mem_torch_pool_id pool);

/*
 Has the memory behind a range stay awake until [`cuda_mem_torch_let_move`](super::cuda_mem_torch_let_move) is passed what `keep` gets. `reason`
 says for whom.

 # Safety

 `reason` is text, `keep` a place for an address.
 */
int cuda_mem_torch_keep(void *address,
                        size_t bytes,
                        const char *reason,
                        void **keep);

/*
 Tells of each tag of a device or of all, and how much of it is awake.

 # Safety

 `tell` may be called with `data`.
 */
int cuda_mem_torch_tags(int device, void *data, void (*tell)(void *data,
                                                             int device,
                                                             const char *tag,
                                                             const struct cuda_mem_torch_tag_state *state));

/*
 Tells which tag has an address, and whether it sleeps there. `CUDA_MEM_TORCH_NOT_OURS` if none has.

 # Safety

 `tell` may be called with `data`.
 */
int cuda_mem_torch_tag_of(void *address, void *data, void (*tell)(void *data,
                                                                  int device,
                                                                  const char *tag,
                                                                  bool is_asleep));

/*
 Makes the host memory for the next sleep of a tag ahead, for what is live now; `bytes`, which may be null, gets how much.

 # Safety

 `tag` is text; `bytes` is null or a place for a size.
 */
int cuda_mem_torch_prepare_backup(int device,
                                  const char *tag,
                                  size_t *bytes);

/*
 Gives the host memory back that is kept for the next sleep of a tag; `bytes`, which may be null, gets how much.

 # Safety

 As [`cuda_mem_torch_prepare_backup`].
 */
int cuda_mem_torch_release_backup(int device, const char *tag, size_t *bytes);

/*
 Copies what the backup of a sleeping tag has of the bytes from an address on, at most `bytes`; `read` gets how many, up to the first that
 it does not have.

 # Safety

 `target` points to `bytes` bytes that nobody else uses, `read` is a place for a size.
 */
int cuda_mem_torch_read_backup(void *address,
                               void *target,
                               size_t bytes,
                               size_t *read);

/*
 Sets the most bytes that may be held of a device, beside its share of the memory; `SIZE_MAX` is no limit. It may be less than is held: what is
 free goes back now, and `freed`, which may be null, gets how much.

 # Safety

 `freed` is null or a place for a size.
 */
int cuda_mem_torch_set_limit(int device,
                             size_t bytes,
                             size_t *freed);

/*
 Gives `write` a table of who uses which GPU: by process, and by stream, pool and tag for processes of this library and of this user.

 `CUDA_MEM_TORCH_UNSUPPORTED` where there is no GPU or no driver, and no such process.

 # Safety

 `write` may be called with `data`.
 */
int cuda_mem_torch_top_table(void *data,
                             void (*write)(void *data, const char *text));

/*
 Shows that table on the terminal, gathered anew after each interval, until the user ends it with `q`. As
 [`cuda_mem_torch_top_table`], and `CUDA_MEM_TORCH_SYSTEM` where there is no terminal.
 */
int cuda_mem_torch_top(uint64_t interval_ms);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CUDA_MEM_TORCH_H */
