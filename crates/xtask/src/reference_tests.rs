//! rdma-core's own tests, on a device of ours in a virtual machine.

use std::ffi::OsString;

use anyhow::{Context, Result};
use clap::Args;

use crate::host;
use crate::kernel::Line;
use crate::vm::{Copy, Device, Vm};

/// Where the guest has the program that runs them.
const RUNNER: &str = "/usr/share/rdma-core/reference_tests.py";

#[derive(Args, Debug)]
pub(crate) struct ReferenceTests {
    /// Line of kernels
    #[arg(long, value_enum, default_value = "7.3")]
    pub(crate) kernel: Line,
    /// RDMA device to run them on
    #[arg(long, value_enum, default_value = "efa")]
    pub(crate) device: Device,
    /// Pass an option to efa-model, as in --model-option=--no-remote-ah
    #[arg(long = "model-option", value_name = "OPTION")]
    pub(crate) model_options: Vec<OsString>,
    /// Tell each test, and why it was skipped
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Tests to run, as in test_efa_srd or test_cq.CQAPITest.test_create_cq; all if there is none
    #[arg(value_name = "TEST")]
    pub(crate) names: Vec<String>,
}

impl ReferenceTests {
    /// All of them, on a device.
    pub(crate) fn on(kernel: Line, device: Device) -> Self {
        Self { kernel, device, model_options: Vec::new(), verbose: false, names: Vec::new() }
    }

    /// The guest that runs them. Its status is 0 if none failed and enough of them were not skipped.
    pub(crate) fn vm(&self) -> Result<Vm> {
        let device = self.device.name().context("these tests need a device: leave --device none out")?;
        let mut command = ["python3", RUNNER, "--device", device].map(str::to_owned).to_vec();
        if let Some(number) = self.at_least() {
            command.extend(["--at-least".to_owned(), number.to_string()]);
        }
        if self.verbose {
            command.push("--verbose".to_owned());
        }
        command.extend(self.names.iter().cloned());
        let mut vm = Vm::command(self.kernel, command);
        vm.device = self.device;
        vm.model_options.clone_from(&self.model_options);
        vm.reference = true;
        vm.environment.push(("PYTHONHASHSEED", "0".to_owned()));
        let host = host::workspace().join("tests/interop/reference_tests.py");
        vm.files.push(Copy { host, guest: RUNNER.to_owned() });
        Ok(vm)
    }

    /// How many of all of them have to pass, where that was found out. The others are for what the device has not.
    fn at_least(&self) -> Option<u32> {
        match (self.kernel, self.device) {
            _ if !self.names.is_empty() || !self.model_options.is_empty() => None,
            (Line::V7_3, Device::Efa) => Some(81),
            (Line::V7_3, Device::Rxe) => Some(135),
            _ => None,
        }
    }
}
