//! A program that writes lines of JSON to a command, and reads those that it writes.

#![allow(
    clippy::indexing_slicing,
    reason = "a field that a message lacks is null"
)]

use std::{collections::VecDeque, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// How many lines an error shows.
const LATEST: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    /// What the command wrote to its standard error.
    pub warned: String,
    /// The lines that were not read before.
    pub unread: Vec<String>,
}

pub struct LineClient {
    pub process: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    /// The latest lines that were read, for the error if no other one comes.
    latest: VecDeque<String>,
}

impl LineClient {
    pub fn start(mut command: Command) -> Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let output = process.stdout.take().context("no output")?;
        Ok(Self {
            input: process.stdin.take(),
            process,
            lines: BufReader::new(output).lines(),
            latest: VecDeque::new(),
        })
    }

    pub async fn write(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("the input is closed")?;
        input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(input.flush().await?)
    }

    pub async fn read(&mut self) -> Result<Value> {
        let line = timeout(PATIENCE, self.lines.next_line()).await;
        let line = line.with_context(|| format!("nothing comes after {:#?}", self.latest))??;
        let line = line.context("the output ended")?;
        let message: Value = serde_json::from_str(&line)?;
        if self.latest.len() == LATEST {
            self.latest.pop_front();
        }
        self.latest.push_back(line);
        ensure!(message["jsonrpc"] == "2.0", "{message}");
        Ok(message)
    }

    /// Closes the input, and waits for the end of the command.
    pub async fn ends(mut self) -> Result<Ended> {
        drop(self.input.take());
        let status = timeout(PATIENCE, self.process.wait()).await??;
        let (mut unread, mut warned) = (Vec::new(), String::new());
        let mut errors = self.process.stderr.take().context("no errors")?;
        errors.read_to_string(&mut warned).await?;
        while let Some(line) = self.lines.next_line().await? {
            unread.push(line);
        }
        Ok(Ended {
            code: status.code(),
            warned,
            unread,
        })
    }
}
