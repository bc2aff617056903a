//! How the ends find each other: over TCP, in the format of the libibverbs examples.
//!
//! The client sends its address as text of 52 bytes, the server answers with its own, and the client says that it has it.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use uverbs::{Gid, IpFamily};

use super::Endpoint;

/// `LLLL:QQQQQQ:PPPPPP:` and 32 digits of GID, and a zero.
const ADDRESS: usize = 52;
const DONE: &[u8] = b"done\0";

/// A TCP connection to the other end.
pub(super) struct Peer {
    stream: TcpStream,
    address: SocketAddr,
}

impl Peer {
    /// Connects to a server.
    pub(super) fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self> {
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

    /// Waits for a client, on all addresses.
    pub(super) fn accept(port: u16, timeout: Duration) -> Result<Self> {
        // An IPv6 socket serves both families, where there is IPv6.
        let listener = TcpListener::bind(("::", port))
            .or_else(|_| TcpListener::bind(("0.0.0.0", port)))
            .with_context(|| format!("cannot listen on TCP port {port}"))?;
        let (stream, address) = listener.accept().context("waiting for a client")?;
        Self::new(stream, address, timeout)
    }

    fn new(stream: TcpStream, address: SocketAddr, timeout: Duration) -> Result<Self> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream, address })
    }

    /// The address family that the ends talk in.
    pub(super) fn family(&self) -> IpFamily {
        if self.address.ip().to_canonical().is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }
    }

    /// The client's part.
    pub(super) fn exchange_as_client(mut self, own: &Endpoint) -> Result<Endpoint> {
        self.send(&encode(own))?;
        let peer = self.receive_address()?;
        self.send(DONE)?;
        Ok(peer)
    }

    /// The server's part. `connect` has the peer's address, and is to be done before the client begins.
    pub(super) fn exchange_as_server(
        mut self,
        own: &Endpoint,
        connect: impl FnOnce(&Endpoint) -> Result<()>,
    ) -> Result<Endpoint> {
        let peer = self.receive_address()?;
        connect(&peer)?;
        self.send(&encode(own))?;
        let mut done = [0; DONE.len()];
        self.receive(&mut done)?;
        if done != DONE {
            bail!("{} speaks another protocol: it sent {:?}", self.address, String::from_utf8_lossy(&done));
        }
        Ok(peer)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).with_context(|| format!("sending to {}", self.address))
    }

    fn receive_address(&mut self) -> Result<Endpoint> {
        let mut bytes = [0; ADDRESS];
        self.receive(&mut bytes)?;
        decode(&bytes).with_context(|| {
            let start = String::from_utf8_lossy(&bytes);
            format!("{} speaks another protocol than ping-pong: it sent {:?}", self.address, start.trim_end())
        })
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.stream.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                anyhow::anyhow!("{} closed the connection before it sent its address", self.address)
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                anyhow::anyhow!("{} connected, but sends nothing", self.address)
            }
            _ => anyhow::Error::new(error).context(format!("receiving from {}", self.address)),
        })
    }
}

fn encode(endpoint: &Endpoint) -> Vec<u8> {
    let Endpoint { lid, qp_num, psn, gid } = endpoint;
    let mut text = format!("{lid:04x}:{qp_num:06x}:{psn:06x}:");
    for byte in gid.0 {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\0');
    text.into_bytes()
}

fn decode(bytes: &[u8; ADDRESS]) -> Option<Endpoint> {
    let text = std::str::from_utf8(bytes.strip_suffix(b"\0")?).ok()?;
    // Parsers of numbers also take a sign.
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':') {
        return None;
    }
    let mut fields = text.split(':');
    let mut number = |digits: usize, most: u32| {
        let field = fields.next().filter(|field| field.len() == digits)?;
        u32::from_str_radix(field, 16).ok().filter(|number| *number <= most)
    };
    let (lid, qp_num, psn) = (number(4, 0xffff)?, number(6, 0xff_ffff)?, number(6, 0xff_ffff)?);
    let gid = fields.next().filter(|gid| gid.len() == 32)?;
    let mut octets = [0; 16];
    for (octet, digits) in octets.iter_mut().zip(gid.as_bytes().chunks(2)) {
        *octet = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(Endpoint { lid: lid as u16, qp_num, psn, gid: Gid(octets) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint { lid: 0, qp_num: 0x11, psn: 0xab_cdef, gid: "::ffff:192.168.77.1".parse().unwrap() }
    }

    #[test]
    fn an_address_looks_as_in_libibverbs() {
        let bytes = encode(&endpoint());
        assert_eq!(bytes, b"0000:000011:abcdef:00000000000000000000ffffc0a84d01\0");
        assert_eq!(decode(&bytes.try_into().unwrap()), Some(endpoint()));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let good: [u8; ADDRESS] = encode(&endpoint()).try_into().unwrap();
        for (at, byte) in [(0, b'g'), (4, b'0'), (4, 0xff), (19, b'+'), (30, b' '), (51, b'0'), (18, 0)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(decode(&bad), None, "byte {at} = {byte}");
        }
        assert_eq!(decode(&[0; ADDRESS]), None);
        assert_eq!(decode(&[b':'; ADDRESS]), None);
    }

    /// A server end and a client end of one TCP connection.
    fn connection() -> (Peer, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, address) = listener.accept().unwrap();
        (Peer::new(stream, address, Duration::from_millis(100)).unwrap(), client)
    }

    #[test]
    fn garbage_silence_and_early_close_are_clear_errors() {
        let serve = |peer: Peer| peer.exchange_as_server(&endpoint(), |_| Ok(())).unwrap_err().to_string();

        let (peer, mut client) = connection();
        client.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: someone\r\n\r\n").unwrap();
        assert!(serve(peer).contains("speaks another protocol than ping-pong: it sent \"GET / HTTP/1.1"));

        let (peer, _client) = connection();
        assert!(serve(peer).contains("connected, but sends nothing"));

        let (peer, client) = connection();
        drop(client);
        assert!(serve(peer).contains("closed the connection before"));
    }

    #[test]
    fn both_ends_agree() {
        let (server, client) = connection();
        let address = client.peer_addr().unwrap();
        let client = Peer::new(client, address, Duration::from_secs(5)).unwrap();
        let other = Endpoint { qp_num: 0x12, ..endpoint() };
        let thread = std::thread::spawn(move || client.exchange_as_client(&other).unwrap());
        let mut connected = None;
        let seen = server.exchange_as_server(&endpoint(), |peer| {
            connected = Some(*peer);
            Ok(())
        });
        assert_eq!((seen.unwrap(), connected), (other, Some(other)));
        assert_eq!(thread.join().unwrap(), endpoint());
    }
}
