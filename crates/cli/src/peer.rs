//! The TCP connection over which two ends set up what they do over RDMA.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::net::{RecvFlags, recv, sockopt};
use uverbs::IpFamily;

/// A TCP connection to the other end.
pub(crate) struct Peer {
    stream: TcpStream,
    name: String,
    family: IpFamily,
    /// How long it may be silent.
    timeout: Duration,
}

impl Peer {
    /// Connects to a server.
    pub(crate) fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self> {
        let addresses = (host, port).to_socket_addrs().with_context(|| format!("host {host}"))?;
        let mut failed = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => return Self::new(stream, address, timeout),
                Err(error) => failed = Some((address, error)),
            }
        }
        match failed {
            Some((address, error)) => {
                Err(error).with_context(|| format!("cannot connect to {address}: is a server waiting there?"))
            }
            None => bail!("host {host} has no address"),
        }
    }

    /// Listens for a client, on all addresses.
    pub(crate) fn listen(port: u16) -> Result<TcpListener> {
        // An IPv6 socket serves both families, where there is IPv6.
        TcpListener::bind(("::", port))
            .or_else(|_| TcpListener::bind(("0.0.0.0", port)))
            .with_context(|| format!("cannot listen on TCP port {port}"))
    }

    /// Waits for a client; only one is served.
    pub(crate) fn accept(listener: TcpListener, timeout: Duration) -> Result<Self> {
        let (stream, address) = listener.accept().context("waiting for a client")?;
        Self::new(stream, address, timeout)
    }

    pub(crate) fn new(stream: TcpStream, address: SocketAddr, timeout: Duration) -> Result<Self> {
        stream.set_nodelay(true)?;
        // A host that has gone without a word is found out by an end that sends.
        sockopt::set_tcp_user_timeout(&stream, timeout.as_millis().try_into()?)?;
        let family = if address.ip().to_canonical().is_ipv4() { IpFamily::V4 } else { IpFamily::V6 };
        Self::with_name(stream, address.to_string(), family, timeout)
    }

    fn with_name(stream: TcpStream, name: String, family: IpFamily, timeout: Duration) -> Result<Self> {
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream, name, family, timeout })
    }

    /// Two ends in this process.
    pub(crate) fn pair(timeout: Duration) -> Result<[Self; 2]> {
        let (one, other) = UnixStream::pair()?;
        let peer = |socket| {
            // It is used as any socket of a stream can be.
            let stream = TcpStream::from(OwnedFd::from(socket));
            Self::with_name(stream, "the other end".to_owned(), IpFamily::V4, timeout)
        };
        Ok([peer(one)?, peer(other)?])
    }

    /// The address family that the ends talk in.
    pub(crate) fn family(&self) -> IpFamily {
        self.family
    }

    /// Who it is.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has sent something, or closed the connection.
    pub(crate) fn has_spoken(&self) -> Result<bool> {
        let seen = recv(&self.stream, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        let seen = seen.map(|(_, length)| length).map_err(io::Error::from);
        match seen {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            seen => self.is_there(seen),
        }
    }

    /// Whether a look has found something. A connection that was reset is closed: that is told when it is read.
    fn is_there(&self, seen: io::Result<usize>) -> Result<bool> {
        match seen {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionReset => Ok(true),
                io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error).with_context(|| format!("receiving from {}", self.name)),
            },
        }
    }

    /// Sends all of `bytes`. A broken pipe in an error is that of the standard output alone.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        match self.stream.write_all(bytes) {
            Ok(()) => Ok(()),
            Err(error) => match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    bail!("{} closed the connection", self.name)
                }
                _ => Err(error).with_context(|| format!("sending to {}", self.name)),
            },
        }
    }

    /// Fills `bytes`, all of them within the time allowed for silence.
    pub(crate) fn receive(&mut self, mut bytes: &mut [u8], awaited: &str) -> Result<()> {
        let deadline = Instant::now() + self.timeout;
        while !bytes.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.stream.read(bytes) {
                Ok(0) => bail!("{} closed the connection before it {awaited}", self.name),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) => match error.kind() {
                    io::ErrorKind::ConnectionReset => {
                        bail!("{} closed the connection before it {awaited}", self.name)
                    }
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if left.is_zero() => {
                        bail!(
                            "{} sends nothing: it has not {awaited}, or needs longer (--timeout)",
                            self.name
                        )
                    }
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                    _ => return Err(error).with_context(|| format!("receiving from {}", self.name)),
                },
            }
        }
        Ok(())
    }
}
