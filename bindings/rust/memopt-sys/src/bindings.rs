// Written by bindings/rust/make_bindings from tests/abi/interface.txt and the headers.
use std::os::raw::{c_char, c_void};

#[repr(C)]
pub struct memopt_allocator {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_device {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_event {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_export {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_fit {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_import {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_offloader {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_optimizer {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_race {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_region {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_scaler {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_schedule {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_stream_opaque {
    _private: [u8; 0],
}
#[repr(C)]
pub struct memopt_streamer {
    _private: [u8; 0],
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_allocator_info {
    pub struct_size: usize,
    pub device: *mut memopt_device,
    pub name: *const c_char,
    pub paused_tags: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_allocator_info>() == 32);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_allocator_options {
    pub struct_size: usize,
    pub limit: u64,
    pub pressure: memopt_pressure_callback,
    pub pressure_user: *mut c_void,
    pub oom: memopt_oom_callback,
    pub oom_user: *mut c_void,
    pub memory: u32,
    pub provider: *const memopt_memory_provider,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_allocator_options>() == 64);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_backend_info {
    pub struct_size: usize,
    pub status: memopt_status,
    pub driver_code: i32,
    pub driver_version: i32,
    pub device_count: i32,
    pub features: u32,
    pub library: [c_char; 256],
    pub tried: [c_char; 512],
    pub problem: [c_char; 512],
    pub missing: [c_char; 512],
    pub targets: [c_char; 512],
    pub compiler: [c_char; 256],
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_backend_info>() == 2592);
pub type memopt_block_format = u32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_block_info {
    pub struct_size: usize,
    pub segment_address: *mut c_void,
    pub segment_bytes: u64,
    pub stream: memopt_stream,
    pub segment_large: u32,
    pub segment_expandable: u32,
    pub address: *mut c_void,
    pub bytes: u64,
    pub requested_bytes: u64,
    pub state: u32,
    pub tag: memopt_tag,
    pub context: u32,
    pub age: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_block_info>() == 88);
pub type memopt_block_visitor = Option<unsafe extern "C" fn(*mut c_void, *const memopt_block_info) -> memopt_status>;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_blocks {
    pub codes: *mut c_void,
    pub scales: *mut c_void,
    pub tensor_amax: *const f32,
    pub rows: u64,
    pub columns: u64,
    pub format: memopt_block_format,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_blocks>() == 48);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_blocks_layout {
    pub struct_size: usize,
    pub block_rows: u64,
    pub block_columns: u64,
    pub code_bits: u64,
    pub code_row_bytes: u64,
    pub code_bytes: u64,
    pub scale_size: u64,
    pub scale_rows: u64,
    pub scale_columns: u64,
    pub scale_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_blocks_layout>() == 80);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_blocks_options {
    pub struct_size: usize,
    pub rounding: u32,
    pub power_of_two: u32,
    pub seed: u64,
    pub sequence: u64,
    pub amax: *mut f32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_blocks_options>() == 40);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_cast_options {
    pub struct_size: usize,
    pub rounding: u32,
    pub saturate: u32,
    pub seed: u64,
    pub sequence: u64,
    pub amax: *mut f32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_cast_options>() == 40);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_chain_stage {
    pub forward_seconds: f64,
    pub backward_seconds: f64,
    pub output_bytes: u64,
    pub saved_bytes: u64,
    pub forward_extra_bytes: u64,
    pub backward_extra_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_chain_stage>() == 48);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_cross_entropy_row {
    pub sum: f64,
    pub largest: f32,
    pub target: f32,
    pub found: u32,
    pub reserved: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_cross_entropy_row>() == 24);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_device_options {
    pub struct_size: usize,
    pub capacity: u64,
    pub threads: u32,
    pub stream_order: u32,
    pub seed: u64,
    pub granularity: u64,
    pub lag: u64,
    pub race: memopt_race_search,
    pub unified: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_device_options>() == 56);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_device_properties {
    pub struct_size: usize,
    pub name: [c_char; 64],
    pub backend: [c_char; 8],
    pub isa: [c_char; 24],
    pub index: i32,
    pub threads: u32,
    pub warp_size: u32,
    pub virtual_memory: u32,
    pub total_memory: u64,
    pub granularity: u64,
    pub kernels: [c_char; 24],
    pub limit: [c_char; 160],
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_device_properties>() == 320);
pub type memopt_dtype = i32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_error_info {
    pub struct_size: usize,
    pub status: memopt_status,
    pub driver_code: i32,
    pub message: *const c_char,
    pub driver_message: *const c_char,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_error_info>() == 32);
pub type memopt_export_reader = Option<unsafe extern "C" fn(*mut c_void, u64, u64, *mut c_void) -> memopt_status>;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_export_source {
    pub reader: memopt_export_reader,
    pub user: *mut c_void,
    pub bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_export_source>() == 24);
pub type memopt_export_writer = Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u64) -> memopt_status>;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_fit_choice {
    pub kind: u32,
    pub module: u32,
    pub storage: u32,
    pub first_pack: u32,
    pub first_input: u32,
    pub input_count: u32,
    pub extra_bytes: u64,
    pub seconds: f64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_fit_choice>() == 40);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_fit_event {
    pub kind: u32,
    pub subject: u32,
    pub storage: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_fit_event>() == 12);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_fit_options {
    pub struct_size: usize,
    pub budget: u64,
    pub host_limit: u64,
    pub disk_limit: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_fit_options>() == 32);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_fit_result {
    pub struct_size: usize,
    pub peak_bytes: u64,
    pub host_bytes: u64,
    pub seconds: f64,
    pub peak_event: u64,
    pub peak_module: u32,
    pub peak_storage: u32,
    pub disk_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_fit_result>() == 56);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_fit_tape {
    pub struct_size: usize,
    pub events: *const memopt_fit_event,
    pub event_count: u64,
    pub storage_bytes: *const u64,
    pub storage_count: u64,
    pub choices: *const memopt_fit_choice,
    pub choice_count: u64,
    pub inputs: *const u32,
    pub input_count: u64,
    pub fixed_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_fit_tape>() == 80);
pub type memopt_history_action = u32;
pub type memopt_history_context = Option<unsafe extern "C" fn(*mut c_void) -> u32>;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_history_event {
    pub time_ns: u64,
    pub address: *mut c_void,
    pub bytes: u64,
    pub stream: memopt_stream,
    pub action: memopt_history_action,
    pub tag: memopt_tag,
    pub context: u32,
    pub thread: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_history_event>() == 48);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_history_options {
    pub struct_size: usize,
    pub events: u64,
    pub context: memopt_history_context,
    pub context_user: *mut c_void,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_history_options>() == 32);
pub type memopt_host_access = u32;
pub type memopt_log_callback = Option<unsafe extern "C" fn(*mut c_void, memopt_log_level, *const c_char)>;
pub type memopt_log_level = i32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_logits {
    pub struct_size: usize,
    pub data: *mut c_void,
    pub rows: u64,
    pub columns: u64,
    pub stride: u64,
    pub first_class: u64,
    pub dtype: memopt_dtype,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_logits>() == 56);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_memory_info {
    pub struct_size: usize,
    pub total: u64,
    pub free: u64,
    pub used: u64,
    pub used_peak: u64,
    pub reserved_va: u64,
    pub pinned: u64,
    pub pinned_peak: u64,
    pub registered: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_memory_info>() == 72);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_memory_provider {
    pub struct_size: usize,
    pub alloc: Option<unsafe extern "C" fn(*mut c_void, u64, *mut *mut c_void) -> memopt_status>,
    pub free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u64) -> memopt_status>,
    pub user: *mut c_void,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_memory_provider>() == 32);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_offloader_options {
    pub struct_size: usize,
    pub host_limit: u64,
    pub min_bytes: u64,
    pub overflow: u32,
    pub flags: u32,
    pub disk_path: *const c_char,
    pub disk_limit: u64,
    pub pinned_limit: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_offloader_options>() == 56);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_offloader_request {
    pub struct_size: usize,
    pub offloader: *mut memopt_offloader,
    pub stream: memopt_stream,
    pub data: *mut c_void,
    pub bytes: u64,
    pub ticket: memopt_ticket,
    pub kept: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_offloader_request>() == 56);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_offloader_stats {
    pub struct_size: usize,
    pub tickets: u64,
    pub host_bytes: u64,
    pub host_bytes_peak: u64,
    pub host_bytes_used: u64,
    pub kept_bytes: u64,
    pub copied_out_bytes: u64,
    pub copied_back_bytes: u64,
    pub packs: u64,
    pub kept_small: u64,
    pub kept_overflow: u64,
    pub prefetch_hits: u64,
    pub waits: u64,
    pub disk_tickets: u64,
    pub disk_bytes_used: u64,
    pub disk_bytes: u64,
    pub disk_bytes_peak: u64,
    pub disk_written_bytes: u64,
    pub disk_read_bytes: u64,
    pub disk_waits: u64,
    pub pageable_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_offloader_stats>() == 168);
pub type memopt_oom_callback = Option<unsafe extern "C" fn(*mut c_void, u64, u64, *const c_char)>;
pub type memopt_oom_cause = u32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_oom_report {
    pub struct_size: usize,
    pub number: u64,
    pub clock: u64,
    pub cause: memopt_oom_cause,
    pub tag: memopt_tag,
    pub asked_bytes: u64,
    pub missing_bytes: u64,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub limit_bytes: u64,
    pub held_bytes: u64,
    pub live_bytes: u64,
    pub requested_bytes: u64,
    pub pending_bytes: u64,
    pub cached_bytes: u64,
    pub spare_bytes: u64,
    pub largest_free_bytes: u64,
    pub rounding_bytes: u64,
    pub unsplit_bytes: u64,
    pub leaked_bytes: u64,
    pub pool_bytes: u64,
    pub outside_bytes: u64,
    pub holder_tag: memopt_tag,
    pub holder_bytes: u64,
    pub holder_blocks: u64,
    pub holder_oldest: u64,
    pub holder_newest: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_oom_report>() == 208);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_optimizer_group {
    pub struct_size: usize,
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub maximize: u32,
    pub nesterov: u32,
    pub momentum: f64,
    pub dampening: f64,
    pub device_lr: *const f32,
    pub average: f64,
    pub beta3: f64,
    pub alpha: f64,
    pub t_alpha: f64,
    pub t_beta3: f64,
    pub min_8bit_size: u64,
    pub beta2_decay: f64,
    pub eps2: f64,
    pub d: f64,
    pub max_ratio: f64,
    pub trust_clip: u32,
    pub uncorrected: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_optimizer_group>() == 168);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_optimizer_options {
    pub struct_size: usize,
    pub kind: u32,
    pub state_format: u32,
    pub stochastic_rounding: u32,
    pub split_weights: u32,
    pub min_8bit_size: u64,
    pub seed: u64,
    pub page_bytes: u64,
    pub trust: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_optimizer_options>() == 56);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_parameter_options {
    pub struct_size: usize,
    pub model_copy: memopt_tensor,
    pub states: *const memopt_tensor,
    pub state_count: u64,
    pub steps: *mut u64,
    pub rows: u64,
    pub columns: u64,
    pub shard: memopt_shard,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_parameter_options>() == 88);
pub type memopt_pause = u32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_pause_options {
    pub struct_size: usize,
    pub tags: u64,
    pub path: *const c_char,
    pub how: memopt_pause,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_pause_options>() == 32);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_pause_report {
    pub struct_size: usize,
    pub released_bytes: u64,
    pub shared_bytes: u64,
    pub kept_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_pause_report>() == 32);
pub type memopt_pluggable_observer = Option<unsafe extern "C" fn(i32, u64, u64, u64)>;
pub type memopt_pluggable_raise = Option<unsafe extern "C" fn(*const c_char, *const c_char, u32, *const c_char)>;
pub type memopt_pool = memopt_allocator;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_pool_options {
    pub struct_size: usize,
    pub name: *const c_char,
    pub config: *const c_char,
    pub limit: u64,
    pub retain: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_pool_options>() == 40);
pub type memopt_pressure_callback = Option<unsafe extern "C" fn(*mut c_void, u64) -> u64>;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_race_access {
    pub address: u64,
    pub bytes: u64,
    pub shape: *const i64,
    pub strides: *const i64,
    pub dims: u32,
    pub mode: memopt_race_mode,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_race_access>() == 40);
pub type memopt_race_kind = u32;
pub type memopt_race_memory = u32;
pub type memopt_race_mode = u32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_race_options {
    pub struct_size: usize,
    pub max_bytes: u64,
    pub max_reports: u64,
    pub inherit: u32,
    pub reserved: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_race_options>() == 32);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_race_report {
    pub struct_size: usize,
    pub kind: memopt_race_kind,
    pub memory: memopt_race_memory,
    pub address: u64,
    pub bytes: u64,
    pub block_address: u64,
    pub block_bytes: u64,
    pub first: memopt_race_side,
    pub second: memopt_race_side,
    pub freed_tag: u64,
    pub waiter: u32,
    pub waited: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_race_report>() == 96);
pub type memopt_race_search = u32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_race_side {
    pub tag: u64,
    pub actor: u32,
    pub write: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_race_side>() == 16);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_race_stats {
    pub struct_size: usize,
    pub operations: u64,
    pub blocks: u64,
    pub ranges: u64,
    pub bytes: u64,
    pub bytes_peak: u64,
    pub forgotten: u64,
    pub reports: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_race_stats>() == 64);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_range_event {
    pub struct_size: usize,
    pub kind: u32,
    pub allocator: *mut memopt_allocator,
    pub address: *mut c_void,
    pub bytes: u64,
    pub generation: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_range_event>() == 48);
pub type memopt_range_observer = Option<unsafe extern "C" fn(*mut c_void, *const memopt_range_event) -> memopt_status>;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_region_callbacks {
    pub struct_size: usize,
    pub run: Option<unsafe extern "C" fn(*mut c_void, *mut memopt_region, memopt_region_pass, memopt_stream) -> memopt_status>,
    pub random_save: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> memopt_status>,
    pub random_restore: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> memopt_status>,
    pub user: *mut c_void,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_region_callbacks>() == 40);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_region_options {
    pub struct_size: usize,
    pub name: *const c_char,
    pub mode: u32,
    pub check: u32,
    pub random_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_region_options>() == 32);
pub type memopt_region_pass = i32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_region_stats {
    pub struct_size: usize,
    pub forwards: u64,
    pub recomputes: u64,
    pub leased_bytes: u64,
    pub dropped_bytes: u64,
    pub checked_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_region_stats>() == 48);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_scaler_options {
    pub struct_size: usize,
    pub init_scale: f64,
    pub growth_factor: f64,
    pub backoff_factor: f64,
    pub growth_interval: u32,
    pub disabled: u32,
    pub allocator: *mut memopt_allocator,
    pub tag: memopt_tag,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_scaler_options>() == 56);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_scaler_state {
    pub struct_size: usize,
    pub scale: f64,
    pub growth_factor: f64,
    pub backoff_factor: f64,
    pub growth_interval: u32,
    pub growth_tracker: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_scaler_state>() == 40);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_schedule_info {
    pub struct_size: usize,
    pub steps: u64,
    pub peak_bytes: u64,
    pub minimum_budget: u64,
    pub recomputed: u64,
    pub seconds: f64,
    pub seconds_plain: f64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_schedule_info>() == 56);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_schedule_options {
    pub struct_size: usize,
    pub budget: u64,
    pub input_bytes: u64,
    pub input_gradient: u32,
    pub slots: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_schedule_options>() == 32);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_schedule_step {
    pub struct_size: usize,
    pub operation: u32,
    pub stage: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_schedule_step>() == 24);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_shard {
    pub first: u64,
    pub whole: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_shard>() == 16);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_state_view {
    pub struct_size: usize,
    pub name: *const c_char,
    pub tensor: memopt_tensor,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_state_view>() == 40);
pub type memopt_status = i32;
pub type memopt_step = u32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_step_options {
    pub struct_size: usize,
    pub scaler: *mut memopt_scaler,
    pub max_norm: f64,
    pub skip_non_finite: u32,
    pub already_unscaled: u32,
    pub out_norm: *mut f32,
    pub grad_scale: *const f32,
    pub found_inf: *mut f32,
    pub square_sum: *const f64,
    pub squares: *mut f64,
    pub half: u32,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_step_options>() == 80);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_step_plan {
    pub struct_size: usize,
    pub steps: u64,
    pub planned_steps: u64,
    pub plans: u64,
    pub active: u64,
    pub allocations: u64,
    pub unplanned: u64,
    pub least_bytes: u64,
    pub bytes: u64,
    pub served: u64,
    pub missed: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_step_plan>() == 88);
pub type memopt_stream = *mut memopt_stream_opaque;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_stream_part {
    pub ticket: memopt_ticket,
    pub bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_stream_part>() == 16);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_stream_plan {
    pub struct_size: usize,
    pub budget: u64,
    pub layers: u64,
    pub layer_bytes: u64,
    pub largest_bytes: u64,
    pub resident: u64,
    pub copies: u64,
    pub copied_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_stream_plan>() == 64);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_stream_stats {
    pub struct_size: usize,
    pub resident: u64,
    pub resident_bytes: u64,
    pub resident_bytes_peak: u64,
    pub begins: u64,
    pub late: u64,
    pub copies: u64,
    pub copied_bytes: u64,
    pub written_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_stream_stats>() == 72);
pub type memopt_tag = u32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_tag_stats {
    pub struct_size: usize,
    pub name: *const c_char,
    pub current_bytes: u64,
    pub peak_bytes: u64,
    pub blocks: u64,
    pub outside_bytes: u64,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_tag_stats>() == 48);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memopt_tensor {
    pub data: *mut c_void,
    pub count: u64,
    pub dtype: memopt_dtype,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::size_of::<memopt_tensor>() == 24);
pub type memopt_ticket = u64;

pub const MEMOPT_OK: memopt_status = 0;
pub const MEMOPT_INVALID_ARGUMENT: memopt_status = 1;
pub const MEMOPT_UNSUPPORTED: memopt_status = 2;
pub const MEMOPT_OUT_OF_HOST_MEMORY: memopt_status = 3;
pub const MEMOPT_OUT_OF_DEVICE_MEMORY: memopt_status = 4;
pub const MEMOPT_LIMIT_REACHED: memopt_status = 5;
pub const MEMOPT_DRIVER_MISSING: memopt_status = 6;
pub const MEMOPT_DRIVER_ERROR: memopt_status = 7;
pub const MEMOPT_DEVICE_LOST: memopt_status = 8;
pub const MEMOPT_DEVICE_FAULT: memopt_status = 9;
pub const MEMOPT_BUSY: memopt_status = 10;
pub const MEMOPT_NOT_READY: memopt_status = 11;
pub const MEMOPT_NOT_FOUND: memopt_status = 12;
pub const MEMOPT_CORRUPT: memopt_status = 13;
pub const MEMOPT_IO_ERROR: memopt_status = 14;
pub const MEMOPT_MISMATCH: memopt_status = 15;
pub const MEMOPT_INTERNAL: memopt_status = 16;
pub const MEMOPT_STATUS_USER: memopt_status = 65536;
pub const MEMOPT_LOG_OFF: memopt_log_level = 0;
pub const MEMOPT_LOG_ERROR: memopt_log_level = 1;
pub const MEMOPT_LOG_WARNING: memopt_log_level = 2;
pub const MEMOPT_LOG_INFO: memopt_log_level = 3;
pub const MEMOPT_LOG_DEBUG: memopt_log_level = 4;
pub const MEMOPT_DTYPE_INVALID: memopt_dtype = 0;
pub const MEMOPT_DTYPE_F32: memopt_dtype = 1;
pub const MEMOPT_DTYPE_F16: memopt_dtype = 2;
pub const MEMOPT_DTYPE_BF16: memopt_dtype = 3;
pub const MEMOPT_DTYPE_F8_E4M3: memopt_dtype = 4;
pub const MEMOPT_DTYPE_F8_E5M2: memopt_dtype = 5;
pub const MEMOPT_DTYPE_U8: memopt_dtype = 6;
pub const MEMOPT_DTYPE_I32: memopt_dtype = 7;
pub const MEMOPT_DTYPE_I64: memopt_dtype = 8;
pub const MEMOPT_DTYPE_F64: memopt_dtype = 9;
pub const MEMOPT_DTYPE_F8_E4M3FNUZ: memopt_dtype = 10;
pub const MEMOPT_DTYPE_F8_E5M2FNUZ: memopt_dtype = 11;
pub const MEMOPT_DTYPE_I16: memopt_dtype = 12;
pub const MEMOPT_RACE_READ: u32 = 1;
pub const MEMOPT_RACE_WRITE: u32 = 2;
pub const MEMOPT_RACE_OUTSIDE: u32 = 0;
pub const MEMOPT_RACE_DEVICE: u32 = 1;
pub const MEMOPT_RACE_PINNED: u32 = 2;
pub const MEMOPT_RACE_READ_AFTER_WRITE: u32 = 1;
pub const MEMOPT_RACE_WRITE_AFTER_READ: u32 = 2;
pub const MEMOPT_RACE_WRITE_AFTER_WRITE: u32 = 3;
pub const MEMOPT_RACE_FREED_IN_USE: u32 = 4;
pub const MEMOPT_STREAM_ORDER_EAGER: u32 = 0;
pub const MEMOPT_STREAM_ORDER_ADVERSARIAL: u32 = 1;
pub const MEMOPT_RACE_SEARCH_DEFAULT: u32 = 0;
pub const MEMOPT_RACE_SEARCH_ON: u32 = 1;
pub const MEMOPT_RACE_SEARCH_OFF: u32 = 2;
pub const MEMOPT_RACE_SEARCH_QUIET: u32 = 3;
pub const MEMOPT_BACKEND_VIRTUAL_MEMORY: u32 = 1;
pub const MEMOPT_BACKEND_HOST_FUNCTIONS: u32 = 2;
pub const MEMOPT_BACKEND_GRAPH_CAPTURE: u32 = 4;
pub const MEMOPT_BACKEND_RUNTIME_COMPILER: u32 = 8;
pub const MEMOPT_TAG_OTHER: u32 = 0;
pub const MEMOPT_TAG_WEIGHTS: u32 = 1;
pub const MEMOPT_TAG_GRADIENTS: u32 = 2;
pub const MEMOPT_TAG_OPTIMIZER: u32 = 3;
pub const MEMOPT_TAG_ACTIVATIONS: u32 = 4;
pub const MEMOPT_TAG_USER: u32 = 5;
pub const MEMOPT_MEMORY_DEVICE: u32 = 0;
pub const MEMOPT_MEMORY_PINNED: u32 = 1;
pub const MEMOPT_PAUSE_DISCARD: u32 = 0;
pub const MEMOPT_PAUSE_KEEP: u32 = 1;
pub const MEMOPT_PAUSE_FILE: u32 = 2;
pub const MEMOPT_RANGE_MAPPED: u32 = 1;
pub const MEMOPT_RANGE_UNMAPPING: u32 = 2;
pub const MEMOPT_OOM_GROWTH: u32 = 0;
pub const MEMOPT_OOM_FRAGMENTATION: u32 = 1;
pub const MEMOPT_OOM_SEGMENTS: u32 = 2;
pub const MEMOPT_OOM_LEAK: u32 = 3;
pub const MEMOPT_OOM_STREAM: u32 = 4;
pub const MEMOPT_OOM_ROUNDING: u32 = 5;
pub const MEMOPT_OOM_POOL: u32 = 6;
pub const MEMOPT_OOM_LIMIT: u32 = 7;
pub const MEMOPT_OOM_OUTSIDE: u32 = 8;
pub const MEMOPT_OOM_REQUEST: u32 = 9;
pub const MEMOPT_BLOCK_INACTIVE: u32 = 0;
pub const MEMOPT_BLOCK_ACTIVE_ALLOCATED: u32 = 1;
pub const MEMOPT_BLOCK_ACTIVE_PENDING_FREE: u32 = 2;
pub const MEMOPT_BLOCK_UNMAPPED: u32 = 3;
pub const MEMOPT_HISTORY_ALLOC: u32 = 1;
pub const MEMOPT_HISTORY_FREE: u32 = 2;
pub const MEMOPT_HISTORY_FAILED: u32 = 3;
pub const MEMOPT_HISTORY_RECORD_STREAM: u32 = 4;
pub const MEMOPT_HISTORY_COMPLETED: u32 = 5;
pub const MEMOPT_HISTORY_MAP: u32 = 6;
pub const MEMOPT_HISTORY_UNMAP: u32 = 7;
pub const MEMOPT_STEP_NEXT: u32 = 0;
pub const MEMOPT_STEP_LEARN: u32 = 1;
pub const MEMOPT_STEP_END: u32 = 2;
pub const MEMOPT_ROUND_NEAREST_EVEN: u32 = 0;
pub const MEMOPT_ROUND_STOCHASTIC: u32 = 1;
pub const MEMOPT_BLOCKS_MXFP8_E4M3: u32 = 1;
pub const MEMOPT_BLOCKS_MXFP8_E5M2: u32 = 2;
pub const MEMOPT_BLOCKS_MXFP4: u32 = 3;
pub const MEMOPT_BLOCKS_NVFP4: u32 = 4;
pub const MEMOPT_BLOCKS_E4M3_1X128: u32 = 5;
pub const MEMOPT_BLOCKS_E4M3_128X128: u32 = 6;
pub const MEMOPT_BLOCKS_E4M3_TENSOR: u32 = 7;
pub const MEMOPT_BLOCKS_E5M2_TENSOR: u32 = 8;
pub const MEMOPT_BLOCKS_NF4_32: u32 = 9;
pub const MEMOPT_BLOCKS_NF4: u32 = 10;
pub const MEMOPT_BLOCKS_NF4_128: u32 = 11;
pub const MEMOPT_BLOCKS_NF4_256: u32 = 12;
pub const MEMOPT_BLOCKS_NF4_512: u32 = 13;
pub const MEMOPT_BLOCKS_NF4_1024: u32 = 14;
pub const MEMOPT_BLOCKS_NF4_2048: u32 = 15;
pub const MEMOPT_BLOCKS_NF4_4096: u32 = 16;
pub const MEMOPT_BLOCKS_DYNAMIC8: u32 = 17;
pub const MEMOPT_PASS_FORWARD: memopt_region_pass = 0;
pub const MEMOPT_PASS_RECOMPUTE: memopt_region_pass = 1;
pub const MEMOPT_REGION_RECOMPUTE: u32 = 0;
pub const MEMOPT_REGION_KEEP: u32 = 1;
pub const MEMOPT_CHECK_NONE: u32 = 0;
pub const MEMOPT_CHECK_HASH: u32 = 1;
pub const MEMOPT_CHECK_EXACT: u32 = 2;
pub const MEMOPT_SCHEDULE_FORWARD: u32 = 1;
pub const MEMOPT_SCHEDULE_FORWARD_KEEP: u32 = 2;
pub const MEMOPT_SCHEDULE_FORWARD_SAVE: u32 = 3;
pub const MEMOPT_SCHEDULE_BACKWARD: u32 = 4;
pub const MEMOPT_FIT_BIRTH: u32 = 1;
pub const MEMOPT_FIT_DEATH: u32 = 2;
pub const MEMOPT_FIT_PACK: u32 = 3;
pub const MEMOPT_FIT_UNPACK: u32 = 4;
pub const MEMOPT_FIT_RELEASE: u32 = 5;
pub const MEMOPT_FIT_ENTER: u32 = 6;
pub const MEMOPT_FIT_LEAVE: u32 = 7;
pub const MEMOPT_FIT_BACKWARD: u32 = 8;
pub const MEMOPT_FIT_RECOMPUTE: u32 = 1;
pub const MEMOPT_FIT_REMAKE: u32 = 2;
pub const MEMOPT_FIT_OFFLOAD: u32 = 3;
pub const MEMOPT_FIT_DISK: u32 = 4;
pub const MEMOPT_OVERFLOW_KEEP: u32 = 0;
pub const MEMOPT_OVERFLOW_WAIT: u32 = 1;
pub const MEMOPT_OVERFLOW_FAIL: u32 = 2;
pub const MEMOPT_OVERFLOW_SPILL: u32 = 3;
pub const MEMOPT_OFFLOADER_NULL_STREAM: u32 = 1;
pub const MEMOPT_HOST_READ: u32 = 1;
pub const MEMOPT_HOST_WRITE: u32 = 2;
pub const MEMOPT_OPTIMIZER_ADAMW: u32 = 1;
pub const MEMOPT_OPTIMIZER_LION: u32 = 2;
pub const MEMOPT_OPTIMIZER_SGD: u32 = 3;
pub const MEMOPT_OPTIMIZER_ADAM: u32 = 4;
pub const MEMOPT_OPTIMIZER_SCHEDULE_FREE: u32 = 5;
pub const MEMOPT_OPTIMIZER_RMSPROP: u32 = 6;
pub const MEMOPT_OPTIMIZER_ADAGRAD: u32 = 7;
pub const MEMOPT_OPTIMIZER_RMSPROP_MOMENTUM: u32 = 8;
pub const MEMOPT_OPTIMIZER_ADEMAMIX: u32 = 9;
pub const MEMOPT_OPTIMIZER_ADAFACTOR: u32 = 10;
pub const MEMOPT_STATE_F32: u32 = 1;
pub const MEMOPT_STATE_8BIT: u32 = 8;
pub const MEMOPT_STATE_8BIT_DYNAMIC: u32 = 2;
pub const MEMOPT_STATE_4BIT: u32 = 7;
pub const MEMOPT_STATE_BF16: u32 = 6;
pub const MEMOPT_VERSION_MAJOR: u32 = 0;
pub const MEMOPT_VERSION_MINOR: u32 = 9;
pub const MEMOPT_VERSION_PATCH: u32 = 0;
pub const MEMOPT_CONTENT_GRANULE: u32 = 4096;
pub const MEMOPT_SHARD_ALIGNMENT: u32 = 256;
pub const MEMOPT_RACE_HOST: u32 = 0;
pub const MEMOPT_RACE_MOST_STREAMS: u32 = 1023;
pub const MEMOPT_RACE_MOST_DIMS: u32 = 64;
pub const MEMOPT_SHARE_MESSAGE_BYTES: u32 = 128;

impl Default for memopt_allocator_info {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_allocator_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_backend_info {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_block_info {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_blocks_layout {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_blocks_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_cast_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_device_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_device_properties {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_error_info {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_fit_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_fit_result {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_fit_tape {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_history_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_logits {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it.dtype = 1;
        it
    }
}
impl Default for memopt_memory_info {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_memory_provider {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_offloader_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_offloader_request {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_offloader_stats {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_oom_report {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_optimizer_group {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it.lr = 0.001;
        it.beta1 = 0.90000000000000002;
        it.beta2 = 0.999;
        it.eps = 1e-08;
        it.weight_decay = 0.01;
        it
    }
}
impl Default for memopt_optimizer_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_parameter_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_pause_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_pause_report {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_pool_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_race_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_race_report {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_race_stats {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_range_event {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_region_callbacks {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_region_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_region_stats {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_scaler_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_scaler_state {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_schedule_info {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_schedule_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_schedule_step {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_state_view {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_step_options {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_step_plan {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_stream_plan {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_stream_stats {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}
impl Default for memopt_tag_stats {
    fn default() -> Self {
        let mut it: Self = unsafe { std::mem::zeroed() };
        it.struct_size = std::mem::size_of::<Self>();
        it
    }
}

extern "C" {
    pub fn memopt_accumulate(device: *mut memopt_device, destinations: *const memopt_tensor, sources: *const memopt_tensor, count: u64, scale: f32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_allocator_add_range_observer(allocator: *mut memopt_allocator, function: memopt_range_observer, user: *mut c_void, out_number: *mut u64) -> memopt_status;
    pub fn memopt_allocator_alloc(allocator: *mut memopt_allocator, bytes: u64, tag: memopt_tag, stream: memopt_stream, out_pointer: *mut *mut c_void) -> memopt_status;
    pub fn memopt_allocator_check_config(config: *const c_char) -> memopt_status;
    pub fn memopt_allocator_create(device: *mut memopt_device, config: *const c_char, options: *const memopt_allocator_options, out_allocator: *mut *mut memopt_allocator) -> memopt_status;
    pub fn memopt_allocator_destroy(allocator: *mut memopt_allocator) -> memopt_status;
    pub fn memopt_allocator_destroy_force(allocator: *mut memopt_allocator) -> memopt_status;
    pub fn memopt_allocator_free(allocator: *mut memopt_allocator, pointer: *mut c_void) -> memopt_status;
    pub fn memopt_allocator_get_block(allocator: *mut memopt_allocator, pointer: *mut c_void, out_base: *mut *mut c_void, out_bytes: *mut u64) -> memopt_status;
    pub fn memopt_allocator_get_info(allocator: *mut memopt_allocator, out_info: *mut memopt_allocator_info) -> memopt_status;
    pub fn memopt_allocator_get_oom_report(allocator: *mut memopt_allocator, out_report: *mut memopt_oom_report) -> memopt_status;
    pub fn memopt_allocator_get_stat(allocator: *mut memopt_allocator, name: *const c_char, out_value: *mut u64) -> memopt_status;
    pub fn memopt_allocator_get_stats(allocator: *mut memopt_allocator, count: u64, out_names: *mut *const c_char, out_values: *mut u64, out_total: *mut u64) -> memopt_status;
    pub fn memopt_allocator_get_step_plan(allocator: *mut memopt_allocator, out_plan: *mut memopt_step_plan) -> memopt_status;
    pub fn memopt_allocator_get_tag_stats(allocator: *mut memopt_allocator, tag: memopt_tag, out_stats: *mut memopt_tag_stats) -> memopt_status;
    pub fn memopt_allocator_mark_step(allocator: *mut memopt_allocator, what: memopt_step) -> memopt_status;
    pub fn memopt_allocator_read_history(allocator: *mut memopt_allocator, first: u64, count: u64, out_events: *mut memopt_history_event, out_first: *mut u64, out_count: *mut u64) -> memopt_status;
    pub fn memopt_allocator_record_stream(allocator: *mut memopt_allocator, pointer: *mut c_void, stream: memopt_stream) -> memopt_status;
    pub fn memopt_allocator_register_tag(allocator: *mut memopt_allocator, name: *const c_char, out_tag: *mut memopt_tag) -> memopt_status;
    pub fn memopt_allocator_remove_range_observer(allocator: *mut memopt_allocator, number: u64) -> memopt_status;
    pub fn memopt_allocator_reset_peaks(allocator: *mut memopt_allocator) -> memopt_status;
    pub fn memopt_allocator_set_history(allocator: *mut memopt_allocator, options: *const memopt_history_options) -> memopt_status;
    pub fn memopt_allocator_set_limit(allocator: *mut memopt_allocator, limit: u64) -> memopt_status;
    pub fn memopt_allocator_set_outside(allocator: *mut memopt_allocator, tag: memopt_tag, bytes: u64) -> memopt_status;
    pub fn memopt_allocator_snapshot(allocator: *mut memopt_allocator, visitor: memopt_block_visitor, user: *mut c_void) -> memopt_status;
    pub fn memopt_allocator_trace(allocator: *mut memopt_allocator, path: *const c_char, out_events: *mut u64) -> memopt_status;
    pub fn memopt_allocator_trim_sync(allocator: *mut memopt_allocator, target: u64, out_released: *mut u64) -> memopt_status;
    pub fn memopt_backend_get_info(backend_name: *const c_char, out_info: *mut memopt_backend_info) -> memopt_status;
    pub fn memopt_blocks_dequantize(device: *mut memopt_device, destinations: *const memopt_tensor, sources: *const memopt_blocks, count: u64, stream: memopt_stream) -> memopt_status;
    pub fn memopt_blocks_get_layout(format: memopt_block_format, rows: u64, columns: u64, out_layout: *mut memopt_blocks_layout) -> memopt_status;
    pub fn memopt_blocks_quantize(device: *mut memopt_device, destinations: *const memopt_blocks, sources: *const memopt_tensor, count: u64, options: *const memopt_blocks_options, stream: memopt_stream) -> memopt_status;
    pub fn memopt_cast(device: *mut memopt_device, destinations: *const memopt_tensor, sources: *const memopt_tensor, count: u64, options: *const memopt_cast_options, stream: memopt_stream) -> memopt_status;
    pub fn memopt_check_finite(device: *mut memopt_device, tensors: *const memopt_tensor, count: u64, found_inf: *mut f32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_content_hash(device: *mut memopt_device, hashes: *mut u64, tensor: *const memopt_tensor, stream: memopt_stream) -> memopt_status;
    pub fn memopt_copy(device: *mut memopt_device, destination: *mut c_void, source: *mut c_void, bytes: u64, stream: memopt_stream) -> memopt_status;
    pub fn memopt_copy_sync(device: *mut memopt_device, destination: *mut c_void, source: *mut c_void, bytes: u64, stream: memopt_stream) -> memopt_status;
    pub fn memopt_cross_entropy_add(device: *mut memopt_device, logits: *const memopt_logits, targets: *const i32, rows: *mut memopt_cross_entropy_row, stream: memopt_stream) -> memopt_status;
    pub fn memopt_cross_entropy_gradient(device: *mut memopt_device, logits: *const memopt_logits, targets: *const i32, rows: *const memopt_cross_entropy_row, scale: f32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_cross_entropy_losses(device: *mut memopt_device, rows: *const memopt_cross_entropy_row, targets: *const i32, count: u64, losses: *mut f32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_dequantize(device: *mut memopt_device, state_format: u32, destination: *const memopt_tensor, codes: *const memopt_tensor, scales: *const memopt_tensor, is_signed: i32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_device_close(device: *mut memopt_device) -> memopt_status;
    pub fn memopt_device_get_memory_info(device: *mut memopt_device, out_info: *mut memopt_memory_info) -> memopt_status;
    pub fn memopt_device_get_properties(device: *mut memopt_device, out_properties: *mut memopt_device_properties) -> memopt_status;
    pub fn memopt_device_get_race(device: *mut memopt_device, out_race: *mut *mut memopt_race) -> memopt_status;
    pub fn memopt_device_open(name: *const c_char, options: *const memopt_device_options, out_device: *mut *mut memopt_device) -> memopt_status;
    pub fn memopt_device_set_threads(device: *mut memopt_device, threads: u32) -> memopt_status;
    pub fn memopt_device_sync(device: *mut memopt_device) -> memopt_status;
    pub fn memopt_dtype_name(dtype: memopt_dtype) -> *const c_char;
    pub fn memopt_dtype_parse(name: *const c_char, out_dtype: *mut memopt_dtype) -> memopt_status;
    pub fn memopt_dtype_size(dtype: memopt_dtype) -> usize;
    pub fn memopt_event_create(device: *mut memopt_device, timing: i32, out_event: *mut *mut memopt_event) -> memopt_status;
    pub fn memopt_event_destroy(event: *mut memopt_event) -> memopt_status;
    pub fn memopt_event_elapsed(start: *mut memopt_event, end: *mut memopt_event, out_seconds: *mut f64) -> memopt_status;
    pub fn memopt_event_query(event: *mut memopt_event) -> memopt_status;
    pub fn memopt_event_record(event: *mut memopt_event, stream: memopt_stream) -> memopt_status;
    pub fn memopt_event_sync(event: *mut memopt_event) -> memopt_status;
    pub fn memopt_export_create(allocator: *mut memopt_allocator, pointer: *mut c_void, out_export: *mut *mut memopt_export) -> memopt_status;
    pub fn memopt_export_describe(shared: *const memopt_export, room: u64, out_message: *mut c_void, out_files: *mut i32, out_count: *mut u64) -> memopt_status;
    pub fn memopt_export_destroy(shared: *mut memopt_export) -> memopt_status;
    pub fn memopt_export_send(shared: *const memopt_export, socket: i32) -> memopt_status;
    pub fn memopt_fill(device: *mut memopt_device, destination: *mut c_void, value: i32, bytes: u64, stream: memopt_stream) -> memopt_status;
    pub fn memopt_fit_create(tape: *const memopt_fit_tape, out_fit: *mut *mut memopt_fit) -> memopt_status;
    pub fn memopt_fit_destroy(fit: *mut memopt_fit) -> memopt_status;
    pub fn memopt_fit_replay(fit: *const memopt_fit, chosen: *const u32, count: u64, out_result: *mut memopt_fit_result) -> memopt_status;
    pub fn memopt_fit_solve(fit: *const memopt_fit, options: *const memopt_fit_options, out_chosen: *mut u32, out_count: *mut u64, out_result: *mut memopt_fit_result) -> memopt_status;
    pub fn memopt_host_alloc(device: *mut memopt_device, bytes: u64, out_pointer: *mut *mut c_void) -> memopt_status;
    pub fn memopt_host_free(device: *mut memopt_device, pointer: *mut c_void) -> memopt_status;
    pub fn memopt_host_register(device: *mut memopt_device, pointer: *mut c_void, bytes: u64) -> memopt_status;
    pub fn memopt_host_unregister(device: *mut memopt_device, pointer: *mut c_void) -> memopt_status;
    pub fn memopt_import_destroy(import: *mut memopt_import) -> memopt_status;
    pub fn memopt_import_open(device: *mut memopt_device, message: *mut c_void, bytes: u64, files: *const i32, count: u64, out_pointer: *mut *mut c_void, out_bytes: *mut u64, out_import: *mut *mut memopt_import) -> memopt_status;
    pub fn memopt_import_receive(device: *mut memopt_device, socket: i32, out_pointer: *mut *mut c_void, out_bytes: *mut u64, out_import: *mut *mut memopt_import) -> memopt_status;
    pub fn memopt_last_error() -> *const c_char;
    pub fn memopt_last_error_info(out_info: *mut memopt_error_info) -> memopt_status;
    pub fn memopt_norm(device: *mut memopt_device, norm: *mut f32, tensors: *const memopt_tensor, count: u64, max_norm: f64, stream: memopt_stream) -> memopt_status;
    pub fn memopt_offloader_create(device: *mut memopt_device, allocator: *mut memopt_allocator, options: *const memopt_offloader_options, out_offloader: *mut *mut memopt_offloader) -> memopt_status;
    pub fn memopt_offloader_destroy(offloader: *mut memopt_offloader) -> memopt_status;
    pub fn memopt_offloader_destroy_force(offloader: *mut memopt_offloader) -> memopt_status;
    pub fn memopt_offloader_evict(offloader: *mut memopt_offloader, ticket: memopt_ticket, stream: memopt_stream) -> memopt_status;
    pub fn memopt_offloader_get_stats(offloader: *mut memopt_offloader, out_stats: *mut memopt_offloader_stats) -> memopt_status;
    pub fn memopt_offloader_give_way(offloader: *mut memopt_offloader, bytes: u64, out_bytes: *mut u64) -> memopt_status;
    pub fn memopt_offloader_host(offloader: *mut memopt_offloader, ticket: memopt_ticket, access: memopt_host_access, out_host: *mut *mut c_void) -> memopt_status;
    pub fn memopt_offloader_host_end(offloader: *mut memopt_offloader, ticket: memopt_ticket) -> memopt_status;
    pub fn memopt_offloader_map_file(offloader: *mut memopt_offloader, path: *const c_char, offset: u64, bytes: u64, out_ticket: *mut memopt_ticket) -> memopt_status;
    pub fn memopt_offloader_pack(offloader: *mut memopt_offloader, data: *mut c_void, bytes: u64, stream: memopt_stream, out_ticket: *mut memopt_ticket) -> memopt_status;
    pub fn memopt_offloader_prefetch(offloader: *mut memopt_offloader, ticket: memopt_ticket) -> memopt_status;
    pub fn memopt_offloader_prefetch_into(offloader: *mut memopt_offloader, ticket: memopt_ticket, destination: *mut c_void, bytes: u64, stream: memopt_stream) -> memopt_status;
    pub fn memopt_offloader_query_packed(offloader: *mut memopt_offloader, ticket: memopt_ticket) -> memopt_status;
    pub fn memopt_offloader_release(offloader: *mut memopt_offloader, ticket: memopt_ticket, stream: memopt_stream) -> memopt_status;
    pub fn memopt_offloader_release_many(offloader: *mut memopt_offloader, tickets: *const memopt_ticket, count: u64, stream: memopt_stream, out_released: *mut u64) -> memopt_status;
    pub fn memopt_offloader_request_pack(request: *mut memopt_offloader_request) -> memopt_status;
    pub fn memopt_offloader_request_unpack(request: *const memopt_offloader_request) -> memopt_status;
    pub fn memopt_offloader_reserve(offloader: *mut memopt_offloader, bytes: u64, out_ticket: *mut memopt_ticket, out_host: *mut *mut c_void) -> memopt_status;
    pub fn memopt_offloader_rewrite(offloader: *mut memopt_offloader, ticket: memopt_ticket, data: *mut c_void, stream: memopt_stream) -> memopt_status;
    pub fn memopt_offloader_trim_sync(offloader: *mut memopt_offloader, out_released: *mut u64) -> memopt_status;
    pub fn memopt_offloader_unpack(offloader: *mut memopt_offloader, ticket: memopt_ticket, stream: memopt_stream, out_data: *mut *mut c_void) -> memopt_status;
    pub fn memopt_offloader_wait_packed(offloader: *mut memopt_offloader, ticket: memopt_ticket, stream: memopt_stream) -> memopt_status;
    pub fn memopt_offloader_wait_unpacked(offloader: *mut memopt_offloader, ticket: memopt_ticket, stream: memopt_stream) -> memopt_status;
    pub fn memopt_optimizer_add_group(o: *mut memopt_optimizer, group: *const memopt_optimizer_group, out_group: *mut u32) -> memopt_status;
    pub fn memopt_optimizer_add_parameter(o: *mut memopt_optimizer, group: u32, parameter: *const memopt_tensor, options: *const memopt_parameter_options, stream: memopt_stream, out_index: *mut u64) -> memopt_status;
    pub fn memopt_optimizer_create(allocator: *mut memopt_allocator, options: *const memopt_optimizer_options, out_optimizer: *mut *mut memopt_optimizer) -> memopt_status;
    pub fn memopt_optimizer_destroy(o: *mut memopt_optimizer) -> memopt_status;
    pub fn memopt_optimizer_export_pieces_sync(o: *mut memopt_optimizer, writer: memopt_export_writer, user: *mut c_void, stream: memopt_stream) -> memopt_status;
    pub fn memopt_optimizer_export_sync(o: *mut memopt_optimizer, bytes: u64, stream: memopt_stream, buffer: *mut c_void, out_bytes: *mut u64) -> memopt_status;
    pub fn memopt_optimizer_get_group(o: *mut memopt_optimizer, group: u32, out_values: *mut memopt_optimizer_group) -> memopt_status;
    pub fn memopt_optimizer_get_state(o: *mut memopt_optimizer, parameter: u64, index: u64, out_view: *mut memopt_state_view) -> memopt_status;
    pub fn memopt_optimizer_get_steps_sync(o: *mut memopt_optimizer, parameter: u64, stream: memopt_stream, out_steps: *mut u64) -> memopt_status;
    pub fn memopt_optimizer_import_pieces_sync(o: *mut memopt_optimizer, sources: *const memopt_export_source, count: u64, converts: u32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_optimizer_import_sync(o: *mut memopt_optimizer, buffer: *mut c_void, bytes: u64, converts: u32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_optimizer_load_sync(o: *mut memopt_optimizer, paths: *const *const c_char, count: u64, converts: u32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_optimizer_save_sync(o: *mut memopt_optimizer, path: *const c_char, stream: memopt_stream) -> memopt_status;
    pub fn memopt_optimizer_set_group(o: *mut memopt_optimizer, group: u32, values: *const memopt_optimizer_group) -> memopt_status;
    pub fn memopt_optimizer_set_steps_sync(o: *mut memopt_optimizer, parameter: u64, steps: u64, stream: memopt_stream) -> memopt_status;
    pub fn memopt_optimizer_step(o: *mut memopt_optimizer, gradients: *const memopt_tensor, count: u64, options: *const memopt_step_options, stream: memopt_stream) -> memopt_status;
    pub fn memopt_parse_size(text: *const c_char, out_bytes: *mut u64) -> memopt_status;
    pub fn memopt_pluggable_alloc(size: u64, device: i32, stream: memopt_stream) -> *mut c_void;
    pub fn memopt_pluggable_alloc_or_raise(size: u64, device: i32, stream: memopt_stream) -> *mut c_void;
    pub fn memopt_pluggable_base_alloc(pointer: *mut c_void, out_bytes: *mut u64) -> *mut c_void;
    pub fn memopt_pluggable_begin_pool(device: i32, id_high: u64, id_low: u64, filter: *mut c_void);
    pub fn memopt_pluggable_configure(backend: *const c_char, config: *const c_char, raise: memopt_pluggable_raise) -> memopt_status;
    pub fn memopt_pluggable_empty_cache();
    pub fn memopt_pluggable_end() -> memopt_status;
    pub fn memopt_pluggable_end_pool(device: i32, id_high: u64, id_low: u64);
    pub fn memopt_pluggable_find_torch(libc10: *const c_char, out_raise: *mut memopt_pluggable_raise) -> memopt_status;
    pub fn memopt_pluggable_free(pointer: *mut c_void, size: u64, device: i32, stream: memopt_stream);
    pub fn memopt_pluggable_get_allocator(device: i32, index: u64, out_allocator: *mut *mut memopt_allocator) -> memopt_status;
    pub fn memopt_pluggable_get_pool(device: i32, index: u64, out_high: *mut u64, out_low: *mut u64) -> memopt_status;
    pub fn memopt_pluggable_history(options: *const memopt_history_options) -> memopt_status;
    pub fn memopt_pluggable_memory_fraction(fraction: f64, device: i32);
    pub fn memopt_pluggable_observe(observer: memopt_pluggable_observer);
    pub fn memopt_pluggable_record_stream(pointer: *mut c_void, stream: memopt_stream);
    pub fn memopt_pluggable_release_pool(device: i32, id_high: u64, id_low: u64);
    pub fn memopt_pluggable_set_tag(name: *const c_char, out_previous: *mut *const c_char) -> memopt_status;
    pub fn memopt_pluggable_trace(folder: *const c_char) -> memopt_status;
    pub fn memopt_pluggable_trim_to_sync(device: i32, target: u64, out_released: *mut u64) -> memopt_status;
    pub fn memopt_pool_create(parent: *mut memopt_allocator, options: *const memopt_pool_options, out_pool: *mut *mut memopt_pool) -> memopt_status;
    pub fn memopt_pool_pause_sync(pool: *mut memopt_pool, options: *const memopt_pause_options, out_report: *mut memopt_pause_report) -> memopt_status;
    pub fn memopt_pool_resume_sync(pool: *mut memopt_pool, tags: u64) -> memopt_status;
    pub fn memopt_quantize(device: *mut memopt_device, state_format: u32, codes: *const memopt_tensor, scales: *const memopt_tensor, source: *const memopt_tensor, is_signed: i32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_race_add_stream(race: *mut memopt_race, out_stream: *mut u32) -> memopt_status;
    pub fn memopt_race_allocate(race: *mut memopt_race, address: u64, bytes: u64, memory: memopt_race_memory, stream: u32, tag: u64) -> memopt_status;
    pub fn memopt_race_create(options: *const memopt_race_options, out_race: *mut *mut memopt_race) -> memopt_status;
    pub fn memopt_race_destroy(race: *mut memopt_race) -> memopt_status;
    pub fn memopt_race_drop_event(race: *mut memopt_race, event: u64) -> memopt_status;
    pub fn memopt_race_free(race: *mut memopt_race, address: u64, tag: u64) -> memopt_status;
    pub fn memopt_race_get_report(race: *mut memopt_race, index: u64, out_report: *mut memopt_race_report) -> memopt_status;
    pub fn memopt_race_get_stats(race: *mut memopt_race, out_stats: *mut memopt_race_stats) -> memopt_status;
    pub fn memopt_race_record(race: *mut memopt_race, stream: u32, event: *mut u64) -> memopt_status;
    pub fn memopt_race_record_stream(race: *mut memopt_race, address: u64, stream: u32) -> memopt_status;
    pub fn memopt_race_run(race: *mut memopt_race, actor: u32, tag: u64, accesses: *const memopt_race_access, count: u32) -> memopt_status;
    pub fn memopt_race_wait(race: *mut memopt_race, waiter: u32, waited: u32) -> memopt_status;
    pub fn memopt_race_wait_event(race: *mut memopt_race, waiter: u32, event: u64) -> memopt_status;
    pub fn memopt_region_alloc(region: *mut memopt_region, bytes: u64, out_pointer: *mut *mut c_void) -> memopt_status;
    pub fn memopt_region_check(region: *mut memopt_region, name: *const c_char, tensor: *const memopt_tensor) -> memopt_status;
    pub fn memopt_region_create(device: *mut memopt_device, allocator: *mut memopt_allocator, callbacks: *const memopt_region_callbacks, options: *const memopt_region_options, out_region: *mut *mut memopt_region) -> memopt_status;
    pub fn memopt_region_destroy(region: *mut memopt_region) -> memopt_status;
    pub fn memopt_region_forward(region: *mut memopt_region, stream: memopt_stream) -> memopt_status;
    pub fn memopt_region_get_stats(region: *mut memopt_region, out_stats: *mut memopt_region_stats) -> memopt_status;
    pub fn memopt_region_recompute(region: *mut memopt_region, stream: memopt_stream) -> memopt_status;
    pub fn memopt_region_release(region: *mut memopt_region) -> memopt_status;
    pub fn memopt_region_reset(region: *mut memopt_region) -> memopt_status;
    pub fn memopt_scale(device: *mut memopt_device, tensors: *const memopt_tensor, count: u64, factor: *const f32, found_inf: *mut f32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_scaler_create(device: *mut memopt_device, options: *const memopt_scaler_options, out_scaler: *mut *mut memopt_scaler) -> memopt_status;
    pub fn memopt_scaler_destroy(scaler: *mut memopt_scaler) -> memopt_status;
    pub fn memopt_scaler_get_found_inf(scaler: *const memopt_scaler) -> *mut f32;
    pub fn memopt_scaler_get_scale(scaler: *const memopt_scaler) -> *const f32;
    pub fn memopt_scaler_get_state_sync(scaler: *mut memopt_scaler, stream: memopt_stream, out_state: *mut memopt_scaler_state) -> memopt_status;
    pub fn memopt_scaler_set_state_sync(scaler: *mut memopt_scaler, state: *const memopt_scaler_state, stream: memopt_stream) -> memopt_status;
    pub fn memopt_scaler_unscale(scaler: *mut memopt_scaler, gradients: *const memopt_tensor, count: u64, stream: memopt_stream) -> memopt_status;
    pub fn memopt_scaler_update(scaler: *mut memopt_scaler, stream: memopt_stream) -> memopt_status;
    pub fn memopt_schedule_create(stages: *const memopt_chain_stage, count: u64, options: *const memopt_schedule_options, out_schedule: *mut *mut memopt_schedule) -> memopt_status;
    pub fn memopt_schedule_destroy(schedule: *mut memopt_schedule) -> memopt_status;
    pub fn memopt_schedule_get_info(schedule: *const memopt_schedule, out_info: *mut memopt_schedule_info) -> memopt_status;
    pub fn memopt_schedule_next(schedule: *mut memopt_schedule, out_step: *mut memopt_schedule_step) -> memopt_status;
    pub fn memopt_set_error(status: memopt_status, driver_code: i32, driver_message: *const c_char, message: *const c_char) -> memopt_status;
    pub fn memopt_set_log(callback: memopt_log_callback, user: *mut c_void, level: memopt_log_level) -> memopt_status;
    pub fn memopt_square_sum(device: *mut memopt_device, sum: *mut f64, tensors: *const memopt_tensor, count: u64, stream: memopt_stream) -> memopt_status;
    pub fn memopt_state_map(state_format: u32, is_signed: i32, out_values: *mut f32) -> memopt_status;
    pub fn memopt_status_message(status: memopt_status) -> *const c_char;
    pub fn memopt_status_name(status: memopt_status) -> *const c_char;
    pub fn memopt_stream_create(device: *mut memopt_device, out_stream: *mut memopt_stream) -> memopt_status;
    pub fn memopt_stream_destroy(device: *mut memopt_device, stream: memopt_stream) -> memopt_status;
    pub fn memopt_stream_host_callback(device: *mut memopt_device, stream: memopt_stream, function: Option<unsafe extern "C" fn(*mut c_void)>, user: *mut c_void) -> memopt_status;
    pub fn memopt_stream_query(device: *mut memopt_device, stream: memopt_stream) -> memopt_status;
    pub fn memopt_stream_release_sync(device: *mut memopt_device, stream: memopt_stream) -> memopt_status;
    pub fn memopt_stream_sync(device: *mut memopt_device, stream: memopt_stream) -> memopt_status;
    pub fn memopt_stream_uses(device: *mut memopt_device, stream: memopt_stream, what: *const c_char, pointer: *mut c_void, bytes: u64, mode: memopt_race_mode) -> memopt_status;
    pub fn memopt_stream_wait_event(device: *mut memopt_device, stream: memopt_stream, event: *mut memopt_event) -> memopt_status;
    pub fn memopt_streamer_add(streamer: *mut memopt_streamer, parts: *const memopt_stream_part, count: u32, out_layer: *mut u32) -> memopt_status;
    pub fn memopt_streamer_begin(streamer: *mut memopt_streamer, layer: u32, stream: memopt_stream, out_parts: *mut *mut c_void) -> memopt_status;
    pub fn memopt_streamer_create(device: *mut memopt_device, offloader: *mut memopt_offloader, budget: u64, out_streamer: *mut *mut memopt_streamer) -> memopt_status;
    pub fn memopt_streamer_destroy(streamer: *mut memopt_streamer) -> memopt_status;
    pub fn memopt_streamer_destroy_force(streamer: *mut memopt_streamer) -> memopt_status;
    pub fn memopt_streamer_end(streamer: *mut memopt_streamer, layer: u32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_streamer_evict(streamer: *mut memopt_streamer, layer: u32) -> memopt_status;
    pub fn memopt_streamer_expect(streamer: *mut memopt_streamer, layers: *const u32, count: u32) -> memopt_status;
    pub fn memopt_streamer_get_limit(streamer: *const memopt_streamer, layers: *const u32, count: u32, work: *const f64, link: f64, out_seconds: *mut f64) -> memopt_status;
    pub fn memopt_streamer_get_plan(streamer: *const memopt_streamer, layers: *const u32, count: u32, out_plan: *mut memopt_stream_plan) -> memopt_status;
    pub fn memopt_streamer_get_stats(streamer: *const memopt_streamer, out_stats: *mut memopt_stream_stats) -> memopt_status;
    pub fn memopt_streamer_rehearse(layers: *const u64, count: u32, budget: u64, work: *const f64, link: f64, out_plan: *mut memopt_stream_plan, out_seconds: *mut f64) -> memopt_status;
    pub fn memopt_streamer_write(streamer: *mut memopt_streamer, layer: u32, stream: memopt_stream) -> memopt_status;
    pub fn memopt_version() -> u32;
    pub fn memopt_version_string() -> *const c_char;
}
