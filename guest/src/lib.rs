//! The program inside every b4run sandbox: it runs commands and handles files for the host, over one framed stream.

pub mod closed;
pub mod connect;
pub mod connection;
pub mod control;
pub mod files;
pub mod frames;
pub mod install;
pub mod job;
pub mod jobs;
pub mod lasting;
pub mod launch;
pub mod log;
pub mod mark;
pub mod messages;
pub mod nursery;
pub mod outbox;
pub mod reaper;
pub mod server;
pub mod stream;
pub mod sys;
pub mod tree;
pub mod zygote;
