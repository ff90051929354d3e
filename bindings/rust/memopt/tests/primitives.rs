use memopt::{sys, Allocator, Device, Error, Offloader, Optimizer, Region};

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect()
}

fn device() -> Device {
    let options = sys::memopt_device_options { capacity: 64 << 20, ..Default::default() };
    Device::open_with("cpu", &options).unwrap()
}

#[test]
fn errors_have_the_librarys_words() {
    let error = Device::open("nothing").err().unwrap();
    assert_eq!(error.status(), sys::MEMOPT_NOT_FOUND);
    assert!(error.message().contains("nothing"), "{}", error);
    assert_eq!(Device::open("c\0u").err().unwrap().status(), sys::MEMOPT_INVALID_ARGUMENT);
    let device = device();
    let allocator = Allocator::new(&device, "").unwrap();
    let error = allocator.block(1 << 40, sys::MEMOPT_TAG_OTHER, &device.default_stream()).err().unwrap();
    assert_eq!(error.status(), sys::MEMOPT_OUT_OF_DEVICE_MEMORY);
    assert_eq!(allocator.oom_report().unwrap().asked_bytes, 1 << 40);
}

#[test]
fn blocks_are_freed_and_streams_belong_to_their_device() {
    let (device, other) = (device(), device());
    let allocator = Allocator::new(&device, "expandable_segments:True").unwrap();
    let stream = device.new_stream().unwrap();
    let live = || allocator.tag_stats(sys::MEMOPT_TAG_WEIGHTS).unwrap().blocks;
    {
        let block = allocator.block_from(&values(1000), sys::MEMOPT_TAG_WEIGHTS, &stream).unwrap();
        assert_eq!(live(), 1);
        assert_eq!(block.read::<f32>(&device.default_stream()).unwrap(), values(1000));
        assert!(block.write(&values(1001), &stream).is_err());
        assert!(block.tensor(1001, sys::MEMOPT_DTYPE_F32).is_err());
        assert!(block.fill(0, &other.default_stream()).is_err());
    }
    assert_eq!(live(), 0);
}

fn trained(format: u32, load: Option<&std::path::Path>, steps: usize) -> Vec<f32> {
    let device = device();
    let stream = device.new_stream().unwrap();
    let allocator = Allocator::new(&device, "").unwrap();
    let weights = allocator.block_from(&values(5000), sys::MEMOPT_TAG_WEIGHTS, &stream).unwrap();
    let options = sys::memopt_optimizer_options { state_format: format, ..Default::default() };
    let mut optimizer = Optimizer::new(&allocator, &options).unwrap();
    let group = optimizer.add_group(&Default::default()).unwrap();
    optimizer.add_parameter(group, &weights, &stream).unwrap();
    assert!(optimizer.step(&[], &Default::default(), &stream).is_err());
    for step in 0..steps {
        let gradient: Vec<f32> = values(5000).iter().map(|x| x * (step + 1) as f32).collect();
        let gradient = allocator.block_from(&gradient, sys::MEMOPT_TAG_GRADIENTS, &stream).unwrap();
        optimizer.step(&[&gradient], &Default::default(), &stream).unwrap();
    }
    assert_eq!(optimizer.steps(0, &stream).unwrap(), steps as u64);
    if let Some(path) = load {
        optimizer.save(path, &stream).unwrap();
        optimizer.load(path, &stream).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(optimizer.steps(0, &stream).unwrap(), steps as u64);
    }
    weights.read(&stream).unwrap()
}

#[test]
fn optimizers_step_as_torchs_adamw() {
    // One step of AdamW with its defaults: lr 1e-3, weight decay 0.01.
    let after = trained(sys::MEMOPT_STATE_F32, None, 1);
    for (new, old) in after.iter().zip(values(5000)) {
        let expected = f64::from(old) * (1.0 - 1e-5) - 1e-3 * f64::from(old) / (f64::from(old).abs() + 1e-8);
        assert!((f64::from(*new) - expected).abs() < 1e-6, "{} {}", new, expected);
    }
    let path = std::env::temp_dir().join(format!("memopt-rust-{}.states", std::process::id()));
    let (wide, narrow) = (trained(sys::MEMOPT_STATE_F32, None, 4), trained(sys::MEMOPT_STATE_8BIT, Some(&path), 4));
    let difference = wide.iter().zip(&narrow).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference > 0.0 && difference < 1e-3, "{}", difference);
}

#[test]
fn regions_recompute_and_find_other_values() {
    let device = device();
    let stream = device.default_stream();
    let allocator = Allocator::new(&device, "").unwrap();
    let options = sys::memopt_region_options { check: sys::MEMOPT_CHECK_HASH, ..Default::default() };
    let (mut runs, mut wrong) = (0, 0);
    let on = &device;
    let mut region = Region::new(&allocator, "layer", &options, |run| {
        runs += 1;
        wrong += i32::from(runs > 2);
        let lease = run.alloc(4096)?;
        assert_eq!(unsafe { sys::memopt_fill(on.as_ptr(), lease.as_ptr(), wrong, lease.bytes(), run.stream()) }, 0);
        run.check("values", &lease)
    })
    .unwrap();
    region.forward(&stream).unwrap();
    assert_eq!(region.stats().unwrap().leased_bytes, 0);
    region.recompute(&stream).unwrap();
    region.release().unwrap();
    region.forward(&stream).unwrap();
    assert_eq!(region.recompute(&stream).unwrap_err().status(), sys::MEMOPT_MISMATCH);
    drop(region);
    assert_eq!(runs, 4);
}

#[test]
fn a_regions_own_error_and_panic_come_out() {
    let device = device();
    let allocator = Allocator::new(&device, "").unwrap();
    let mut region =
        Region::new(&allocator, "layer", &Default::default(), |_| Err(Error::new("no data"))).unwrap();
    let error = region.forward(&device.default_stream()).unwrap_err();
    assert_eq!((error.status(), error.message()), (sys::MEMOPT_STATUS_USER, "no data"));
    let mut region = Region::new(&allocator, "layer", &Default::default(), |_| panic!("of the callback")).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.forward(&device.default_stream())));
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "of the callback");
}

#[test]
fn offloaded_blocks_come_back() {
    let device = device();
    let stream = device.new_stream().unwrap();
    let allocator = Allocator::new(&device, "").unwrap();
    let foreign = Allocator::new(&device, "").unwrap();
    let offloader = Offloader::new(&allocator, 0).unwrap();
    let pack = |count| {
        let block = allocator.block_from(&values(count), sys::MEMOPT_TAG_ACTIVATIONS, &stream).unwrap();
        offloader.pack(block, &stream).map_err(|(error, _)| error).unwrap()
    };
    let (first, second) = (pack(100_000), pack(200_000));
    stream.sync().unwrap();
    first.prefetch().unwrap();
    assert_eq!(second.read::<f32>(&stream).unwrap(), values(200_000));
    second.release(&stream).unwrap();
    assert_eq!(first.read::<f32>(&stream).unwrap(), values(100_000));
    drop(first);
    assert_eq!(offloader.stats().unwrap().tickets, 0);
    let block = foreign.block_from(&values(10), sys::MEMOPT_TAG_OTHER, &stream).unwrap();
    let (error, block) = offloader.pack(block, &stream).err().unwrap();
    assert_eq!(error.status(), sys::MEMOPT_INVALID_ARGUMENT);
    assert_eq!(block.read::<f32>(&stream).unwrap(), values(10));
}

#[test]
fn handles_cross_threads() {
    let device = device();
    let allocator = Allocator::new(&device, "").unwrap();
    std::thread::scope(|scope| {
        for k in 0..4 {
            let (device, allocator) = (&device, &allocator);
            scope.spawn(move || {
                let block = allocator.block_from(&values(100 + k), sys::MEMOPT_TAG_OTHER, &device.default_stream());
                assert_eq!(block.unwrap().read::<f32>(&device.default_stream()).unwrap(), values(100 + k));
            });
        }
    });
    assert_eq!(allocator.tag_stats(sys::MEMOPT_TAG_OTHER).unwrap().blocks, 0);
}
