//! Devices driven as a driver and a program drive them, with memory that is a vector.
#![allow(missing_docs)]

mod admin;
mod counters;
mod datapath;
mod lifecycle;
mod rig;
