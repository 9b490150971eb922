//! Host-device bandwidth, and whether zero-copy is what it says.
//!
//!     cargo run --release -p tpu-pjrt --example transfers -- PLUGIN.so

use std::error::Error;
use std::time::Instant;

use tpu_pjrt::{Client, ElementType, HostSemantics, Plugin, Value};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Median seconds of nine runs.
fn time(mut body: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut samples = Vec::new();
    for _ in 0..9 {
        let before = Instant::now();
        body()?;
        samples.push(before.elapsed().as_secs_f64());
    }
    samples.sort_by(f64::total_cmp);
    Ok(samples[4])
}

fn main() -> Outcome<()> {
    let path = std::env::args().nth(1).ok_or("give the path of a plugin")?;
    let client = Client::create(&Plugin::load(&path)?, &[("cpu_device_count", Value::Int(1))])?;
    let device = client.addressable_devices()?.into_iter().next().ok_or("no device")?;
    println!("{client:?} PJRT {:?}", client.plugin().version());
    for bytes in [256_usize, 16 << 10, 1 << 20, 64 << 20] {
        let dims = [bytes as i64];
        let element = ElementType::U8;
        let mut room = vec![1_u8; bytes + 64];
        let offset = room.as_ptr().align_offset(64);
        let aligned = &mut room[offset..offset + bytes];
        let mut out = vec![1_u8; bytes];
        let copy = time(|| {
            out.copy_from_slice(aligned);
            std::hint::black_box(&mut out);
            Ok(())
        })?;
        let from = time(|| {
            client.buffer_from_host(aligned, element, &dims, &device)?.wait()?;
            Ok(())
        })?;
        let buffer = client.buffer_from_host(aligned, element, &dims, &device)?;
        let to = time(|| Ok(buffer.to_host(&mut out)?))?;
        let raw = match buffer.copy_raw_to_host(&mut out, 0) {
            Ok(()) => format!("{:.2} us", time(|| Ok(buffer.copy_raw_to_host(&mut out, 0)?))? * 1e6),
            Err(error) => error.to_string(),
        };
        let mut zero = Vec::new();
        for shift in [0, 16, 1] {
            let data = room[offset + shift..].as_ptr();
            let len = bytes - shift;
            let start = Instant::now();
            // SAFETY: `room` outlives the buffer and is not written meanwhile.
            let (lent, _done) = unsafe {
                let semantics = HostSemantics::ZeroCopy;
                client.buffer_from_host_unsafe(data, element, &[len as i64], None, semantics, &device)?
            };
            lent.wait()?;
            let elapsed = start.elapsed().as_secs_f64();
            zero.push(format!(
                "align 64+{shift}: {} {:.1} us",
                if lent.unsafe_pointer()? == data as usize { "in place" } else { "copied" },
                elapsed * 1e6
            ));
        }
        println!(
            "{bytes:9} B: memcpy {:.2} us, from_host {:.2} us, to_host {:.2} us, raw {raw}; zero copy: {}",
            copy * 1e6,
            from * 1e6,
            to * 1e6,
            zero.join(", ")
        );
    }
    Ok(())
}
