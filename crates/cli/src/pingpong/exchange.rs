//! How the ends find each other: over TCP, in the format of the libibverbs examples.
//!
//! The client sends its address as text of 52 bytes, the server answers with its own, and the client says that it has it. With a
//! shared receive queue they send 256 addresses, zeros for QPs that there are not.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use uverbs::Gid;

use crate::connect::Endpoint;
use crate::peer::Peer;

/// `LLLL:QQQQQQ:PPPPPP:` and 32 digits of GID, and a zero.
const ADDRESS: usize = 52;
const DONE: &[u8] = b"done\0";

/// The client's part: both ends tell as many addresses.
pub(super) fn exchange_as_client(mut peer: Peer, own: &[Endpoint]) -> Result<Vec<Endpoint>> {
    peer.send(&encode(own))?;
    let peers = receive_addresses(&mut peer, own.len())?;
    peer.send(DONE)?;
    Ok(peers)
}

/// The server's part. `connect` has the peer's addresses, and is to be done before the client begins.
pub(super) fn exchange_as_server(
    mut peer: Peer,
    own: &[Endpoint],
    connect: impl FnOnce(&[Endpoint]) -> Result<()>,
) -> Result<Vec<Endpoint>> {
    let peers = receive_addresses(&mut peer, own.len())?;
    connect(&peers)?;
    peer.send(&encode(own))?;
    let mut done = [0; DONE.len()];
    peer.receive(&mut done, "said that it has the address")?;
    if done != DONE {
        bail!(
            "{} speaks another protocol, or is another kind of ping-pong: it sent {:?}",
            peer.name(),
            String::from_utf8_lossy(&done)
        );
    }
    Ok(peers)
}

fn receive_addresses(peer: &mut Peer, count: usize) -> Result<Vec<Endpoint>> {
    let mut endpoints = Vec::with_capacity(count);
    while endpoints.len() < count {
        let awaited = match endpoints.len() {
            0 => "sent its address".to_owned(),
            some => {
                format!("sent more than {some} of {count} addresses: is it another kind of ping-pong?")
            }
        };
        let mut bytes = [0; ADDRESS];
        peer.receive(&mut bytes, &awaited)?;
        endpoints.push(decode(&bytes).with_context(|| {
            let start = String::from_utf8_lossy(&bytes);
            format!("{} speaks another protocol than ping-pong: it sent {:?}", peer.name(), start.trim_end())
        })?);
    }
    Ok(endpoints)
}

fn encode(endpoints: &[Endpoint]) -> Vec<u8> {
    let mut text = String::with_capacity(endpoints.len() * ADDRESS);
    for Endpoint { lid, qp_num, psn, gid } in endpoints {
        // Writing to a string cannot fail.
        let _ = write!(text, "{lid:04x}:{qp_num:06x}:{psn:06x}:{:032x}\0", u128::from_be_bytes(gid.0));
    }
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
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint { lid: 0, qp_num: 0x11, psn: 0xab_cdef, gid: "::ffff:192.168.77.1".parse().unwrap() }
    }

    #[test]
    fn an_address_looks_as_in_libibverbs() {
        let bytes = encode(&[endpoint()]);
        assert_eq!(bytes, b"0000:000011:abcdef:00000000000000000000ffffc0a84d01\0");
        assert_eq!(decode(&bytes.try_into().unwrap()), Some(endpoint()));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let good: [u8; ADDRESS] = encode(&[endpoint()]).try_into().unwrap();
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
        let serve = |peer: Peer, count| {
            let own = vec![endpoint(); count];
            exchange_as_server(peer, &own, |_| Ok(())).unwrap_err().to_string()
        };

        let (peer, mut client) = connection();
        client.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: someone\r\n\r\n").unwrap();
        assert!(serve(peer, 1).contains("speaks another protocol than ping-pong: it sent \"GET / HTTP/1.1"));

        let (peer, mut client) = connection();
        client.write_all(&encode(&[endpoint()])[..51]).unwrap();
        assert!(serve(peer, 1).contains("sends nothing: it has not sent its address"));

        let (peer, client) = connection();
        drop(client);
        assert!(serve(peer, 1).contains("closed the connection before it sent its address"));

        let (peer, mut client) = connection();
        client.write_all(&encode(&[endpoint()])).unwrap();
        let error = serve(peer, 256);
        assert!(
            error.contains("sends nothing: it has not sent more than 1 of 256")
                && error.contains("another kind"),
            "{error}"
        );

        let (peer, mut client) = connection();
        client.write_all(&encode(&[endpoint(); 2])).unwrap();
        assert!(serve(peer, 1).contains("another kind of ping-pong: it sent \"0000:\""));
    }

    #[test]
    fn both_ends_agree() {
        for count in [1, 256] {
            let (server, client) = connection();
            let address = client.peer_addr().unwrap();
            let client = Peer::new(client, address, Duration::from_secs(5)).unwrap();
            let own = vec![endpoint(); count];
            let others: Vec<_> = (0..count as u32).map(|qp_num| Endpoint { qp_num, ..endpoint() }).collect();
            let told = others.clone();
            let thread = std::thread::spawn(move || exchange_as_client(client, &told).unwrap());
            let mut connected = Vec::new();
            let seen = exchange_as_server(server, &own, |peers| {
                connected = peers.to_vec();
                Ok(())
            });
            assert_eq!((&seen.unwrap(), &connected), (&others, &others));
            assert_eq!(thread.join().unwrap(), own);
        }
    }
}
