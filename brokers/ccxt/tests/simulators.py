"""The simulators of the venues, by ccxt's names of them."""

from binance_simulator import BinanceSimulator
from bybit_simulator import BybitSimulator
from okx_simulator import OkxSimulator

SIMULATORS = {"binance": BinanceSimulator, "bybit": BybitSimulator, "okx": OkxSimulator}
