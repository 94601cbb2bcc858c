// A venue on jspurefix, run as a program with the settings that QuickFIX's venues have. It takes every limit order and
// fills it at once, in two parts.
require('reflect-metadata')
const { readFileSync } = require('fs')
const { AsciiSession, SessionLauncher } = require('jspurefix')

const settings = readFileSync(process.argv[2], 'utf8')
const [, port] = settings.match(/SocketAcceptPort=(.*)/)
const [, client] = settings.match(/TargetCompID=(.*)/)
const config = {
  application: {
    type: 'acceptor', name: 'venue', protocol: 'ascii', dictionary: 'qf44', tcp: { host: '127.0.0.1', port: Number(port) },
  },
  BeginString: 'FIX.4.4', SenderCompId: 'VENUE', TargetCompID: client, EncryptMethod: 0, HeartBtInt: 30,
  ResetSeqNumFlag: false, Username: '', Password: '',
}

class Venue extends AsciiSession {
  executions = 0

  onApplicationMsg (type, view) {
    const order = view.toObject()
    const quantity = order.OrderQtyData.OrderQty
    const part = Math.floor(quantity / 2)
    this.report(order, '0', '0', 0, 0)
    this.report(order, 'F', '1', part, part)
    this.report(order, 'F', '2', quantity - part, quantity)
  }

  report (order, execType, status, quantity, filled) {
    this.send('8', {
      OrderID: `J${order.ClOrdID}`, ClOrdID: order.ClOrdID, ExecID: `E${++this.executions}`, ExecType: execType,
      OrdStatus: status, Side: order.Side, Instrument: order.Instrument, OrderQtyData: order.OrderQtyData,
      LastQty: quantity, LastPx: order.Price, LeavesQty: order.OrderQtyData.OrderQty - filled, CumQty: filled,
      AvgPx: order.Price, TransactTime: new Date(),
    })
  }

  onReady () {}
  onStopped () {}
  onLogon () { return true }
  onDecoded () {}
  onEncoded () {}
}

class Launcher extends SessionLauncher {
  makeFactory () {
    return { makeSession: sessionConfig => new Venue(sessionConfig) }
  }
}

new Launcher(null, config).run()
